//! The memory that `nacre walk`, `copy`, `compare` and `remove` take for a long chain of directories, with few descriptors.
//! `NACRE_LEVELS` sets the length of the chain.

mod harness;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Ended, Memory, program, tree};
use rustix::process::{Pid, Signal, kill_process};

/// The memory for each level, in bytes: with it, a million of them fit in 64 MiB together with the program itself.
const LEVEL_BYTES: usize = 50;

/// The additional memory of a chain of any length, in bytes: buffers that are as large for a shorter one as for a longer one.
const CHAIN_BYTES: usize = 6 << 20;

/// The memory for each level of a walk that goes on from a checkpoint, and has the counts from there beside its own.
const RESUMED_LEVEL_BYTES: usize = 90;

/// The time after which a command is considered to hang: at a million levels it takes minutes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Runs the program with few descriptors, and interrupts it after a while if it has saved a checkpoint by then. Returns its result,
/// and the most memory that it was seen to have taken.
fn run(words: &[&str], interrupted: Option<(Duration, &Path)>) -> (Ended, usize) {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 256 && exec \"$@\"", "sh"]).arg(program().get_program()).args(words);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let collector = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    let (begun, mut peak_bytes, mut interrupted) = (Instant::now(), 0, interrupted);
    let status = loop {
        // A resource usage would include the memory of this process, from which the child was made.
        let about = fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default();
        if about.trim_end() == "nacre"
            && let Some(memory) = Memory::of(child.id())
        {
            peak_bytes = peak_bytes.max(memory.peak_bytes as usize);
        }
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if let Some((after, checkpoint)) = interrupted
            && begun.elapsed() >= after
            && checkpoint.exists()
        {
            // Not reaped yet, so it is this process.
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            interrupted = None;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let ended = Ended {
        code: harness::shell_code(status),
        stdout: collector.join().unwrap(),
        stderr: complaints.join().unwrap(),
    };
    (ended, peak_bytes)
}

/// The paths of a test in its folder.
struct Paths {
    source: String,
    target: String,
    checkpoint: String,
}

/// Runs every command on the chain, and passes its words and its memory to `check`.
fn run_all(paths: &Paths, levels: usize, copies: usize, mut check: impl FnMut(&str, usize)) {
    let Paths { source, target, checkpoint } = paths;
    let entries = levels + 2;
    let mut run = |words: &[&str]| -> Ended {
        let (ended, peak) = run(words, None);
        check(&words.join(" "), peak);
        ended
    };
    let everything = ["--top", "5", "--histogram", "depth,size,owner", "--depth-summary", "--threads", "1"];
    let saved = ["--json", "--checkpoint", checkpoint, "--every", "100ms"];
    let summary = run(&[&["walk", source], &everything[..], &saved[..]].concat()).json();
    assert_eq!(summary["total"]["entries"], entries);
    assert_eq!(summary["deepest"]["depth"], levels + 1);
    // All have one entry: the deepest come first.
    let largest = summary["top"]["directories_by_entries"].as_array().unwrap();
    let path_lens = largest.iter().map(|directory| directory["path"].as_str().unwrap().len());
    let depths: Vec<usize> = path_lens.map(|len| (len - source.len()) / "/d".len()).collect();
    assert_eq!(depths, (0..5).map(|above| levels - above).collect::<Vec<_>>());
    let shown = summary["levels"].as_array().unwrap();
    assert_eq!(shown.iter().map(|level| level["entries"].as_u64().unwrap()).sum::<u64>(), entries as u64);
    let text = run(&[&["walk", source], &everything[..]].concat()).text();
    assert!(text.contains("\ndirectories with the most entries\n"));
    assert_eq!(run(&["walk", "--json", source, "--threads", "2"]).json()["total"]["entries"], entries);
    for _ in 0..copies {
        let said = run(&["copy", "--json", source, target, "--threads", "2"]).json();
        assert_eq!(said["directories"], levels + 1, "{said}");
    }
    // The deepest level, too.
    run(&["compare", source, target]).ok();
    run(&["remove", "--yes", target]).ok();
    assert!(!Path::new(target).exists());
}

/// Walks the chain, and interrupts the walk again and again until it is at its end. Returns how often, and the most memory.
fn resume(paths: &Paths, levels: usize) -> (usize, usize) {
    let Paths { source, checkpoint, .. } = paths;
    let (mut interruptions, mut most) = (0, 0);
    loop {
        let flag = if interruptions > 0 { "--resume" } else { "--checkpoint" };
        let words = ["walk", "--json", source, "--top", "2", "--depth-summary", flag, checkpoint];
        // Each time after a longer while, so that it comes to an end.
        let after = Duration::from_millis(500 << (2 * interruptions).min(12));
        let (ended, peak) = run(&words, Some((after, Path::new(checkpoint))));
        most = most.max(peak);
        if ended.code == 0 {
            let summary = ended.json();
            assert_eq!(summary["total"]["entries"], levels + 2);
            assert_eq!(summary["deepest"]["depth"], levels + 1);
            // In whichever run each was counted, the deepest of those with one entry comes first.
            let largest = &summary["top"]["directories_by_entries"][0];
            assert_eq!((&largest["entries"], &largest["path"]), (&1.into(), &summary["deepest"]["path"]));
            return (interruptions, most);
        }
        assert!(ended.stderr.contains("interrupted"), "{ended:?}");
        interruptions += 1;
    }
}

/// A folder that is removed from the deepest level up: the library goes down by calls of itself, for which a chain is too long.
struct Deep(tempfile::TempDir);

impl Drop for Deep {
    fn drop(&mut self) {
        let _ = Command::new("rm").arg("-rf").arg(self.0.path()).status();
    }
}

#[test]
fn a_chain_of_directories_takes_few_bytes_for_each_level() {
    let soak = std::env::var("NACRE_LEVELS").ok();
    let levels = soak.as_ref().map_or(50_000, |text| text.parse().unwrap());
    // The second one finds everything at its place.
    let copies = if soak.is_some() { 2 } else { 1 };
    let folder = Deep(harness::folder());
    let at = |name: &str| folder.0.path().join(name).to_str().unwrap().to_owned();
    let paths = |source| Paths { source: at(source), target: at("target"), checkpoint: at("checkpoint") };
    let (few, many) = (paths("few"), paths("many"));
    tree::chain(Path::new(&few.source), 1000, "d");
    tree::chain(Path::new(&many.source), levels, "d");
    let mut base = 0;
    run_all(&few, 1000, 1, |_, peak| base = base.max(peak));
    println!("the program itself: {} KiB", base >> 10);
    run_all(&many, levels, copies, |words, peak| {
        let each = peak.saturating_sub(base + CHAIN_BYTES) / levels;
        println!("{each} bytes for each level, {} KiB: {words}", peak >> 10);
        assert!(each <= LEVEL_BYTES, "{words}: {} KiB, {each} bytes for each level", peak >> 10);
    });
    let (interruptions, peak) = resume(&many, levels);
    let each = peak.saturating_sub(base + CHAIN_BYTES) / levels;
    println!("{each} bytes for each level, {} KiB, interrupted {interruptions} times", peak >> 10);
    assert!(each <= RESUMED_LEVEL_BYTES, "{} KiB, {each} bytes for each level", peak >> 10);
    run(&["remove", "--yes", &few.source, &many.source], None).0.ok();
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0);
}
