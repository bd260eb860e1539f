//! The game of `examples/grid`, played by bots in processes of their own: they move between groups, are handed the
//! states of cells, and must agree in the end on every flag, while locations move between reflectors, and a reflector
//! is killed and started again.

mod harness;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::reflect::{Reflector, relocate, until};
use harness::{Server, folder, wait};

/// The time limit: a game of bots takes long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the path of the game, which is built with the tests.
fn game() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_nacre")).with_file_name("examples").join("grid");
    assert!(path.exists(), "{} is missing: cargo build --package nacre-cli --example grid", path.display());
    path
}

/// Starts the bots of a game.
fn start(players: u32, words: &[&str]) -> Vec<Child> {
    let bot = |player: u32| {
        let mut command = Command::new(game());
        command
            .args(["--bot", "--player", &player.to_string(), "--players", &players.to_string()])
            .args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    (1..=players).map(bot).collect()
}

/// Returns the end of a game: the result that all bots agreed on, and the output of each.
#[track_caller]
fn finish(bots: Vec<Child>) -> (String, Vec<String>) {
    let mut ends = Vec::new();
    for mut bot in bots {
        let status = wait(&mut bot, PATIENCE);
        // The output of a bot fits into a pipe.
        let output = bot.wait_with_output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        println!("{stderr}");
        assert!(status.success(), "{status}: {stderr}");
        ends.push((stdout, stderr));
    }
    let first = ends[0].0.clone();
    assert!(first.contains("digest "), "{first}");
    for (summary, _) in &ends {
        assert_eq!(*summary, first, "players do not agree");
    }
    (first, ends.into_iter().map(|(_, stderr)| stderr).collect())
}

/// Returns the number before some words in a bot's output.
fn number(said: &str, before: &str) -> u64 {
    let (left, _) = said.split_once(before).unwrap_or_else(|| panic!("\"{before}\" is not in {said}"));
    left.rsplit(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty()).unwrap().parse().unwrap()
}

#[test]
fn players_cross_cells_and_agree_in_the_end() {
    let reflector = Reflector::start(&["--state-every", "200ms"]);
    let at = reflector.address.to_string();
    let bots = start(4, &["--reflector", &at, "--turns", "60", "--turn-ms", "20", "--seed", "11"]);
    let (summary, said) = finish(bots);
    println!("{summary}");
    let entered: u64 = said.iter().map(|said| number(said, " cells, ")).sum();
    assert!(entered > 4, "somebody crossed from one cell to another: {said:?}");
    assert!(said.iter().any(|said| number(said, " datagrams") > 0), "somebody met another: {said:?}");
    until("all have left", || (reflector.report()["members"] == 0).then_some(()));
}

#[test]
fn cells_move_between_reflectors_and_a_killed_one_comes_back() {
    let folder = folder();
    let store = Server::start(&harness::file(folder.path()), &[]);
    let flags = ["--store", &store.uri, "--state-every", "200ms", "--heartbeat", "100ms", "--expiry", "2s"];
    let (here, there) = (Reflector::start(&flags), Reflector::start(&flags));
    let place = |name: &str, reflector: &Reflector, group: u32| {
        relocate(&there.admin, name, &reflector.group(group));
    };
    let names: Vec<String> = (0..9).map(|cell| format!("grid/{},{}", cell % 3, cell / 3)).collect();
    for (group, name) in (1..).zip(&names) {
        place(name, &here, group);
    }
    place("grid/plaza", &there, 10);
    let at = there.address.to_string();
    let bots = start(
        3,
        &["--reflector", &at, "--locations", "grid", "--turns", "80", "--turn-ms", "50", "--seed", "5"],
    );
    until("all are in", || (here.report()["members"].as_u64() >= Some(3)).then_some(()));
    // Half of the world moves during the game.
    for (group, name) in (21..).zip(names.iter().step_by(2)) {
        place(name, &there, group);
    }
    until("somebody has moved", || (there.report()["members"].as_u64() > Some(0)).then_some(()));
    // And the rest disappears for a moment.
    let address = here.address.to_string();
    here.kill();
    let _again = Reflector::listen(&address, &flags);
    let (summary, _) = finish(bots);
    println!("{summary}");
}
