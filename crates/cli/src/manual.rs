//! The parts of the manual pages beyond the definition of the command line: examples of every command, related pages, the
//! environment, exit codes.

use nacre_shell::manual::{Example, Manual};

/// The manual of `nacre`.
pub const MANUAL: Manual = Manual {
    program: "nacre",
    examples: EXAMPLES,
    related: RELATED,
    environment: ENVIRONMENT,
    exit_status: EXIT_STATUS,
};

/// The examples of each command, by its name without `nacre`.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "",
        &[
            ("nacre serve", "run a server for this user, with its objects in ./nacre-data"),
            ("nacre put report report.pdf", "store a file as an object"),
            ("nacre get report copy.pdf", "fetch it again"),
        ],
    ),
    (
        "serve",
        &[
            ("nacre serve", "keep objects in ./nacre-data, for this user alone"),
            (
                "nacre serve --store file:/srv/nacre --listen 192.0.2.1:6470 --key /etc/nacre/key",
                "serve other machines",
            ),
            ("nacre serve --store mem: --listen unix:/tmp/nacre.sock", "keep objects in memory"),
            ("nacre serve --roles store,reflect", "reflect datagrams too"),
        ],
    ),
    (
        "put",
        &[
            ("nacre put report report.pdf", "store a file as the object report"),
            ("tar c src | nacre put backups/src.tar", "store standard input"),
        ],
    ),
    (
        "get",
        &[
            ("nacre get report copy.pdf", "fetch the object report into a file"),
            ("nacre get backups/src.tar | tar t", "fetch it to standard output"),
            ("nacre get report --offset 1MiB --length 4KiB -", "fetch a part of it"),
        ],
    ),
    (
        "write",
        &[
            ("nacre write counter 42", "write two bytes at the beginning"),
            ("nacre write log --offset 4KiB --file entry", "write a file at an offset"),
            (
                "nacre write journal --append --file entry",
                "write a file at the end of what is there, and print where that was",
            ),
            ("nacre write counter 43 --if-version 7", "only if nothing there is newer than version 7"),
            ("nacre write lock mine --create", "only if there is no such object"),
        ],
    ),
    (
        "apply",
        &[
            ("nacre apply transactions.json", "apply the transactions of a file, one after the other"),
            ("nacre apply - < transactions.json", "read them from standard input"),
        ],
    ),
    (
        "read",
        &[
            ("nacre read counter", "print the bytes of an object"),
            ("nacre --json read counter --offset 0 --length 2", "print them with their versions"),
        ],
    ),
    (
        "extents",
        &[("nacre extents report --length 1GiB", "list the extents of the first GiB, with their versions")],
    ),
    ("stat", &[("nacre stat report", "show the version and the forks of an object")]),
    (
        "fence",
        &[
            ("nacre fence shared 71", "refuse changes of session 71 to the object shared"),
            ("nacre fence shared --below 100", "refuse those of all sessions with numbers below 100"),
        ],
    ),
    (
        "ls",
        &[
            ("nacre ls", "list all objects"),
            ("nacre ls backups/", "list those whose names begin with backups/"),
        ],
    ),
    (
        "rm",
        &[
            ("nacre rm report", "remove an object"),
            (
                "nacre rm --staged --idle 1h 'backups/src.tar'",
                "remove only staged content without progress for an hour",
            ),
        ],
    ),
    (
        "keys set",
        &[
            ("nacre keys set users alice 7", "set a key of the object users"),
            ("nacre keys set users alice 8 --if-value 7", "only if its value is still 7"),
        ],
    ),
    ("keys get", &[("nacre keys get users alice", "print the value of a key")]),
    ("keys ls", &[("nacre keys ls users a --limit 10", "list up to ten keys that begin with a")]),
    ("keys rm", &[("nacre keys rm users alice", "remove a key")]),
    ("attr set", &[("nacre attr set report author alice", "set an attribute of an object")]),
    ("attr get", &[("nacre attr get report author", "print it")]),
    ("attr ls", &[("nacre attr ls report", "list all attributes")]),
    ("attr rm", &[("nacre attr rm report author", "remove an attribute")]),
    (
        "info",
        &[
            ("nacre info", "show space, durability and versions of a store"),
            ("nacre info --regions", "show which regions lose the most races"),
        ],
    ),
    (
        "scrub",
        &[
            ("nacre scrub", "check every byte that a store wrote, while it runs"),
            ("nacre scrub --repair --store file:nacre-data", "repair a store that no server has open"),
        ],
    ),
    ("compact", &[("nacre compact", "reclaim the space of overwritten and removed data")]),
    (
        "purge",
        &[
            ("nacre purge --store rados://nacre --dry-run", "count what removed objects have left in a pool"),
            ("nacre purge --store rados://nacre --older-than 7d", "take it away, but for the last week's"),
        ],
    ),
    (
        "copy-objects",
        &[
            ("nacre copy-objects unix:/tmp/nacre.sock file:/backup/nacre", "back up a store into a folder"),
            (
                "nacre copy-objects file:/backup/nacre nacre://192.0.2.1:6470 --key /etc/nacre/key",
                "restore it to a server",
            ),
        ],
    ),
    (
        "class put",
        &[
            ("nacre class put counter.lua", "install the class counter"),
            (
                "nacre class put counter.lua --wall 100ms --memory 1MiB",
                "install it with limits for each call",
            ),
        ],
    ),
    ("class ls", &[("nacre class ls", "list the classes, and their versions")]),
    ("class show", &[("nacre class show counter", "print the script of a class")]),
    ("class history", &[("nacre class history counter", "list its versions")]),
    ("class rollback", &[("nacre class rollback counter", "go back to the previous version")]),
    ("class rm", &[("nacre class rm counter", "remove a class")]),
    (
        "class call",
        &[
            ("nacre class call visits counter.add 1", "call a method on the object visits"),
            ("nacre class call visits counter.add - < amount", "with standard input as the input"),
        ],
    ),
    ("class test", &[("nacre class test counter.lua counter.test", "test a class on an object in memory")]),
    ("map ls", &[("nacre map ls", "list the maps of a store")]),
    ("map get", &[("nacre map get settings", "print all entries of a map")]),
    (
        "map set",
        &[
            ("nacre map set settings colour=blue size=7", "set two entries in one epoch"),
            ("nacre map set settings leader=me --absent", "only if there is no such entry"),
        ],
    ),
    ("map rm", &[("nacre map rm settings colour", "remove an entry")]),
    (
        "map watch",
        &[("nacre map watch settings --since 12", "print epoch 13 and all later ones as they come")],
    ),
    ("map history", &[("nacre map history settings", "list the epochs that are kept")]),
    ("map limits", &[("nacre map limits settings", "show the limits of a map")]),
    (
        "map validator put",
        &[("nacre map validator put settings colours colours.lua", "check changes to a map with a script")],
    ),
    ("map validator ls", &[("nacre map validator ls settings", "list the validators of a map")]),
    (
        "map validator show",
        &[("nacre map validator show settings colours", "print the script of a validator")],
    ),
    ("map validator rm", &[("nacre map validator rm settings colours", "remove a validator")]),
    ("balance ls", &[("nacre balance ls", "list the policies that ship")]),
    (
        "balance set",
        &[
            ("nacre balance set adaptable", "put a policy that ships into force"),
            (
                "nacre balance set ./mine.lua --tick 5s",
                "put a script of your own into force, and decide every 5 seconds",
            ),
            ("nacre balance set --moves 2", "move at most 2 resources away from a rank at a tick"),
        ],
    ),
    (
        "balance show",
        &[("nacre balance show", "print the policy in force, the settings and the moves under way")],
    ),
    (
        "balance history",
        &[
            ("nacre balance history", "list the changes that are kept"),
            ("nacre balance history --moves -n 20", "list the last 20 moves of sequencers and groups"),
        ],
    ),
    (
        "balance rollback",
        &[("nacre balance rollback", "put the policy before the present one into force again")],
    ),
    ("balance off", &[("nacre balance off", "stop balancing")]),
    (
        "balance pin",
        &[
            ("nacre balance pin sequencer:orders 2", "keep a sequencer at rank 2"),
            ("nacre balance pin group:harbour 0", "keep the group of a location at reflector 0"),
        ],
    ),
    ("balance unpin", &[("nacre balance unpin sequencer:orders", "leave it to the policy again")]),
    (
        "balance mask",
        &[
            ("nacre balance mask 'sequencer:*' 1 2", "move sequencers to ranks 1 and 2 only"),
            ("nacre balance mask 'sequencer:*'", "move them anywhere again"),
        ],
    ),
    (
        "balance simulate",
        &[(
            "nacre balance simulate load.jsonl --policy ./mine.lua --ranks 8",
            "try a script on a trace, without any server",
        )],
    ),
    ("balance explain", &[("nacre balance explain --policy hash", "see what another policy would do now")]),
    ("fs ls", &[("nacre fs ls /home", "list a directory of the namespace")]),
    ("fs stat", &[("nacre fs stat /home/notes", "show owner, permissions, times and size")]),
    ("fs find", &[("nacre fs find / --name '*.log' --type file", "find files by name")]),
    ("fs tree", &[("nacre fs tree /home", "draw a directory and everything below it")]),
    ("fs cat", &[("nacre fs cat /home/notes", "print a file")]),
    (
        "fs get",
        &[
            ("nacre fs get /home/notes notes", "fetch a file"),
            ("nacre fs get -r /home/results .", "fetch a directory with everything below it"),
        ],
    ),
    (
        "fs put",
        &[
            ("nacre fs put notes /home/", "store a file in a directory"),
            ("nacre fs put -r results /home", "store a folder with everything in it"),
        ],
    ),
    ("fs mkdir", &[("nacre fs mkdir /home", "create a directory")]),
    ("fs mv", &[("nacre fs mv /home/notes /home/old", "rename a file, replacing an existing one")]),
    ("fs rm", &[("nacre fs rm /home/old", "remove a file")]),
    (
        "fs ln",
        &[
            ("nacre fs ln /home/notes /home/again", "give a file a second name"),
            ("nacre fs ln -s notes /home/link", "create a symbolic link"),
        ],
    ),
    ("fs chmod", &[("nacre fs chmod 640 /home/notes", "change permissions")]),
    ("fs chown", &[("nacre fs chown 1000:1000 /home/notes", "change owner and group")]),
    (
        "fs create",
        &[
            ("nacre fs create --type sequencer /ids", "create a sequencer with a path"),
            ("nacre fs create --type counter /visits", "create an inode with the methods of a class"),
        ],
    ),
    ("fs call", &[("nacre fs call /visits add 1", "call a method of an inode")]),
    ("fs check", &[("nacre fs check", "check the namespace")]),
    (
        "fs quota set",
        &[
            ("nacre fs quota set /home/ada --bytes 10GiB --entries 100000", "limit an empty directory"),
            ("nacre fs quota set /home/ada --bytes none", "lift a limit"),
        ],
    ),
    ("fs quota show", &[("nacre fs quota show /home/ada", "show the limits and what is used of them")]),
    ("fs quota rm", &[("nacre fs quota rm /home/ada", "remove the quota of an empty directory")]),
    (
        "mount",
        &[
            ("nacre mount /mnt", "mount the namespace, until Ctrl-C"),
            ("nacre mount --read-only --allow-other /mnt", "mount it read-only for all users"),
            ("nacre mount --locks shared /mnt", "have locks of files hold between machines"),
        ],
    ),
    (
        "zlog create",
        &[("nacre zlog create events --width 8", "create a log that is spread over eight objects")],
    ),
    ("zlog ls", &[("nacre zlog ls", "list the logs of a store")]),
    (
        "zlog append",
        &[
            ("nacre zlog append events started", "append an entry, and print its position"),
            (
                "journalctl -f | nacre zlog append events --tag journal --quiet",
                "append each line as it comes, with a tag",
            ),
        ],
    ),
    (
        "zlog read",
        &[
            ("nacre zlog read events 0 100", "print the entries of a hundred positions"),
            ("nacre zlog read events 0 --tag journal", "print all entries that have a tag"),
        ],
    ),
    ("zlog tail", &[("nacre zlog tail events", "print the position that the next entry gets")]),
    (
        "zlog follow",
        &[("nacre zlog follow events --from 0 --positions", "print all entries, and new ones as they come")],
    ),
    (
        "zlog trim",
        &[
            ("nacre zlog trim events 7", "remove one entry"),
            ("nacre zlog trim events 1000 --before", "remove all entries before a position"),
        ],
    ),
    ("zlog fill", &[("nacre zlog fill events 7", "give up a position that its writer left empty")]),
    ("zlog info", &[("nacre zlog info events", "show epoch, tail and views of a log")]),
    ("zlog seal", &[("nacre zlog seal events", "recover the tail, and refuse requests of earlier epochs")]),
    ("zlog reshape", &[("nacre zlog reshape events --width 16", "spread future entries over more objects")]),
    ("zlog check", &[("nacre zlog check events", "check that no position was written twice")]),
    ("zlog mv", &[("nacre zlog mv events old-events", "rename a log")]),
    ("zlog rm", &[("nacre zlog rm old-events", "remove a log and its entries")]),
    (
        "ping",
        &[
            ("nacre ping", "send four requests to each server"),
            ("nacre ping -c 0 -i 100ms", "send ten requests per second, until Ctrl-C"),
        ],
    ),
    ("status", &[("nacre status", "show the servers, and whether all are healthy")]),
    (
        "top",
        &[
            ("nacre top", "watch the servers, until q"),
            ("nacre --json top -i 10s | tee load.jsonl", "record what they do"),
        ],
    ),
    ("log", &[("nacre log --follow", "print the cluster log, and new lines as they come")]),
    (
        "lock",
        &[
            ("nacre lock data -- ./update", "run a program while all bytes of data are locked"),
            (
                "nacre lock data -p 'vector(count=1024, block=64, stride=4096)' -- ./update",
                "lock a column of it",
            ),
            (
                "nacre lock data --shared --wait 5s -- ./report",
                "lock it for reading, within five seconds or not at all",
            ),
        ],
    ),
    ("locks", &[("nacre locks data", "list the sessions that hold or wait for bytes of data")]),
    ("locks break", &[("nacre locks break 71", "take all locks from session 71, and fence it off")]),
    ("sequencer create", &[("nacre sequencer create ids --policy hold=10ms", "create a sequencer")]),
    ("sequencer next", &[("nacre sequencer next ids -n 100", "take a hundred positions")]),
    ("sequencer read", &[("nacre sequencer read ids", "print the next position without taking it")]),
    (
        "sequencer policy",
        &[
            ("nacre sequencer policy ids round-trip", "stop all caching of it"),
            ("nacre sequencer policy ids lua=priority", "let a script decide who caches it"),
            ("nacre sequencer policy /jobs/ hold=10ms", "change all that are below a directory"),
        ],
    ),
    ("sequencer ls", &[("nacre sequencer ls", "list all sequencers")]),
    ("sequencer rm", &[("nacre sequencer rm ids", "remove a sequencer")]),
    ("rank ls", &[("nacre rank ls", "list the metadata ranks, their daemons and what they do")]),
    (
        "rank move",
        &[
            ("nacre rank move ids 1", "move a sequencer to rank 1 while programs use it"),
            ("nacre rank move /jobs 1", "move all sequencers below a directory"),
            ("nacre rank move ids 1 --mode proxy", "have the old rank forward all requests to rank 1"),
        ],
    ),
    ("rank pin", &[("nacre rank pin /jobs 1", "give rank 1 all that is below a directory, now and later")]),
    ("rank unpin", &[("nacre rank unpin /jobs", "create sequencers at rank 0 again")]),
    (
        "fail",
        &[
            ("nacre fail", "hand metadata rank 0 over to a standby"),
            ("nacre fail 1", "hand metadata rank 1 over to a standby"),
        ],
    ),
    (
        "mpirun",
        &[
            ("nacre mpirun -n 4 ./program", "run a job with a correct atomic mode"),
            ("nacre mpirun -hosts a,b -n 64 ./program", "run a job on two nodes, with a lock server on each"),
            (
                "nacre mpirun --lock-servers nacre://192.0.2.1:6470 -n 64 ./program",
                "use lock servers that are already running",
            ),
            (
                "nacre mpirun --lease-lost kill -n 4 ./program",
                "kill a rank that was stopped before others get the bytes that it holds",
            ),
            ("nacre mpirun --atomic -n 4 ./program", "put all files in atomic mode, as for PnetCDF"),
        ],
    ),
    ("watch", &[("nacre watch report", "print each change of an object, until Ctrl-C")]),
    (
        "notify",
        &[("nacre notify report 'please reload'", "tell all watchers, and print who acknowledged it")],
    ),
    (
        "walk",
        &[
            ("nacre walk /home", "count everything below a directory"),
            ("nacre walk /home --list --type f --size +1G", "list the files larger than 1 GiB"),
            ("nacre walk /scratch --top 20 --histogram age", "show the largest files, and the ages of all"),
            ("nacre walk /scratch --depth-summary", "count what is on every level"),
            ("nacre walk /lustre --ost 7 --list", "list the files on one object storage target of Lustre"),
            ("nacre walk /scratch --index scratch.sqlite", "store the sweep as a database"),
            ("nacre walk /scratch --index scratch.parquet", "store it for DuckDB, pandas and Spark"),
            ("nacre walk nacre:/results --top 20", "show the largest files in the namespace of a store"),
        ],
    ),
    (
        "query",
        &[
            ("nacre query scratch.sqlite --by owner", "show the space that each owner takes"),
            ("nacre query scratch.sqlite --by directory --top 20", "show the largest directories"),
            (
                "nacre query scratch.sqlite --sql 'SELECT count(*) FROM entries WHERE size = 0'",
                "run any other query",
            ),
        ],
    ),
    ("browse", &[("nacre browse scratch.sqlite", "look for what takes the space")]),
    (
        "diff",
        &[(
            "nacre diff monday.sqlite tuesday.sqlite",
            "list what was created, removed, changed or moved in between",
        )],
    ),
    (
        "copy",
        &[
            ("nacre copy /data /backup/", "copy a tree to /backup/data, or continue such a copy"),
            ("nacre copy --verify --fsync /data /backup/", "sync the copy to disk, and compare it"),
            ("nacre copy --prune .git project /backup/", "leave out everything of this name"),
            ("nacre copy project nacre:/projects/", "copy a tree into the namespace of a store"),
            (
                "nacre copy --mirror --dry-run /data /mirror",
                "count the changes that would make /mirror a mirror",
            ),
        ],
    ),
    (
        "compare",
        &[
            ("nacre compare /data /backup/data", "print the differences"),
            (
                "nacre compare --contents-only --quiet a b",
                "report only by the exit code whether contents differ",
            ),
        ],
    ),
    (
        "remove",
        &[
            ("nacre remove /scratch/old", "remove a tree, after asking"),
            ("nacre remove --dry-run --list /scratch/old", "list what would be removed"),
            (
                "nacre remove --mtime +30 --empty-directories /scratch",
                "remove files not modified for a month, and directories left empty",
            ),
            (
                "nacre remove --yes --from old.json",
                "remove the files that \"nacre query --list --json\" listed, if they are unchanged",
            ),
        ],
    ),
    (
        "reflect serve",
        &[
            ("nacre reflect serve --open", "reflect on this machine"),
            (
                "nacre reflect serve --listen 192.0.2.1:7400 --token-key KEY",
                "admit members with a token of this key pair",
            ),
        ],
    ),
    (
        "reflect join",
        &[(
            "nacre reflect join 5@192.0.2.1:7400",
            "join group 5: print what others send, send what you type",
        )],
    ),
    ("reflect send", &[("nacre reflect send 5@192.0.2.1:7400 hello", "send one datagram to a group")]),
    ("reflect groups", &[("nacre reflect groups", "list the groups of a reflector")]),
    (
        "reflect token",
        &[(
            "nacre reflect token 7400/5 --for 1h --identity alice --key tokens.key",
            "create a token that is valid for an hour",
        )],
    ),
    (
        "reflect token-key",
        &[(
            "nacre reflect token-key --key tokens.key",
            "print the key with which a reflector verifies tokens",
        )],
    ),
    ("reflect kick", &[("nacre reflect kick alice --group 7400/5", "remove a member from a group")]),
    (
        "reflect ban",
        &[
            ("nacre reflect ban 198.51.100.0/24 --for 1d", "ban a network for a day"),
            ("nacre reflect ban 198.51.100.0/24 --lift", "lift the ban"),
        ],
    ),
    (
        "reflect move",
        &[(
            "nacre reflect move lobby --to 5@192.0.2.2:7400",
            "move a location and its members to another reflector",
        )],
    ),
    ("keygen", &[("nacre keygen /etc/nacre/key", "create a key for a cluster")]),
    ("bench", &[("nacre bench rmw --quick", "run the study of conditional updates briefly")]),
    ("tour", &[("nacre tour", "see objects, versions and conditional writes in ten seconds")]),
    (
        "completions",
        &[(
            "nacre completions bash > ~/.local/share/bash-completion/completions/nacre",
            "complete commands in bash",
        )],
    ),
    (
        "man",
        &[
            ("nacre man | man -l -", "read this program's page"),
            ("nacre man --folder ~/.local/share/man/man1", "write one page per command"),
        ],
    ),
];

/// The pages to read beside those of a command at the top.
const RELATED: &[(&str, &[&str])] = &[
    ("", &["nacre-serve", "nacre-put", "nacre-get", "nacre-bench"]),
    ("serve", &["nacre-keygen", "nacre-status", "nacre-top", "nacre-reflect-serve"]),
    ("put", &["nacre-get", "nacre-write", "nacre-fs-put"]),
    ("get", &["nacre-put", "nacre-read", "nacre-fs-get"]),
    ("write", &["nacre-read", "nacre-apply", "nacre-extents"]),
    ("read", &["nacre-write", "nacre-get", "nacre-extents"]),
    ("apply", &["nacre-write", "nacre-keys"]),
    ("fence", &["nacre-lock", "nacre-stat"]),
    ("info", &["nacre-top", "nacre-status", "nacre-scrub"]),
    ("scrub", &["nacre-info", "nacre-copy-objects"]),
    ("purge", &["nacre-compact", "nacre-rm", "nacre-info"]),
    ("copy-objects", &["nacre-scrub", "nacre-copy"]),
    ("ping", &["nacre-status", "nacre-top"]),
    ("status", &["nacre-ping", "nacre-top", "nacre-log"]),
    ("top", &["nacre-ping", "nacre-status", "nacre-info"]),
    ("log", &["nacre-status"]),
    ("lock", &["nacre-locks", "nacre-fence", "nacre-mpirun"]),
    ("locks", &["nacre-lock"]),
    ("mpirun", &["nacre-lock", "nacre-locks"]),
    ("sequencer", &["nacre-rank", "nacre-fail", "nacre-zlog"]),
    ("rank", &["nacre-sequencer", "nacre-balance", "nacre-fail", "nacre-serve"]),
    ("balance", &["nacre-rank", "nacre-sequencer", "nacre-map", "nacre-log"]),
    ("fail", &["nacre-status", "nacre-rank", "nacre-sequencer"]),
    ("zlog", &["nacre-sequencer"]),
    ("fs", &["nacre-mount", "nacre-sequencer", "nacre-class"]),
    ("mount", &["nacre-fs"]),
    ("watch", &["nacre-notify"]),
    ("notify", &["nacre-watch"]),
    ("walk", &["nacre-query", "nacre-browse", "nacre-diff", "nacre-copy", "nacre-remove"]),
    ("query", &["nacre-walk", "nacre-browse", "nacre-diff"]),
    ("browse", &["nacre-walk", "nacre-query"]),
    ("diff", &["nacre-walk", "nacre-query"]),
    ("copy", &["nacre-walk", "nacre-compare", "nacre-remove", "nacre-copy-objects"]),
    ("compare", &["nacre-copy", "nacre-walk"]),
    ("remove", &["nacre-walk", "nacre-copy"]),
    ("keygen", &["nacre-serve", "nacre-reflect-token-key"]),
];

/// The environment variables of all commands.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("NACRE_STORE", "The store of a command without --store. Daemons and studies do not read it."),
    ("NACRE_KEY", "The file with the cluster's key, for a command without --key."),
    (
        "NACRE_FENCE",
        "The lock session that a command acts for, as with --fence. \"nacre lock\" sets it for its command.",
    ),
    (
        "NACRE_POLL",
        "The time for which a program polls for the next message before it sleeps, such as 200us; 0us disables polling.",
    ),
    (
        "XDG_RUNTIME_DIR",
        "The folder below which the user's own server has its socket; if unset, the socket is below /run/user, or in /tmp.",
    ),
];

/// The exit codes of commands that have no others.
const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "Success."),
    ("1", "Failure; a message on standard error says why, and what to do."),
    ("2", "The command line is wrong."),
    ("3", "A guard did not hold; standard output shows the current state."),
    (
        "130, 143",
        "Ctrl-C or SIGTERM ended the command before its work was done, as a shell shows it: the program ends by that signal. A command \
         that runs until it is stopped, such as a server or one that follows changes, ends with 0.",
    ),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Line;

    #[test]
    fn examples_can_be_typed_and_pages_exist() {
        // Any point of the curve is a public key.
        let key = format!("58{}", "66".repeat(31));
        nacre_shell::manual::check::manual(&MANUAL, Line::command(), &[("KEY", &key)]);
    }
}
