//! `nacre browse`, on a terminal of its own.

use std::fs;

use super::harness::{self, program};
use super::{path, run, sweep};

/// A program on a terminal of its own.
struct OnTerminal {
    running: std::process::Child,
    terminal: fs::File,
    seen: Vec<u8>,
}

impl OnTerminal {
    fn start(words: &[&str]) -> OnTerminal {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&terminal, size).unwrap();
        let side = fs::File::options().read(true).write(true).open(name).unwrap();
        let mut command = program();
        command.args(words).stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
        let running = command.spawn().unwrap();
        OnTerminal { running, terminal: terminal.into(), seen: Vec::new() }
    }

    fn press(&mut self, keys: &str) {
        use std::io::Write;
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads what the program draws until it has drawn this, and returns all of it.
    #[track_caller]
    fn read_until(&mut self, text: &str) -> String {
        use std::io::Read;
        let mut buffer = [0; 4096];
        loop {
            let drawn = String::from_utf8_lossy(&self.seen).into_owned();
            if let Some(at) = drawn.find(text) {
                self.seen = drawn.as_bytes()[at + text.len()..].to_vec();
                return drawn;
            }
            let mut readable = [rustix::event::PollFd::new(&self.terminal, rustix::event::PollFlags::IN)];
            let patience = harness::PATIENCE.try_into().unwrap();
            assert_ne!(
                rustix::event::poll(&mut readable, Some(&patience)).unwrap(),
                0,
                "no {text:?}: {drawn}"
            );
            // When the program has ended, and nobody else has the terminal open, this is an error.
            let count = self.terminal.read(&mut buffer).unwrap_or(0);
            assert_ne!(count, 0, "the program ended without drawing {text:?}: {drawn}");
            self.seen.extend_from_slice(&buffer[..count]);
        }
    }
}

#[test]
fn an_index_is_browsed_by_size() {
    let folder = harness::folder();
    let (tree, index) = (folder.path().join("tree"), path(&folder, "index.sqlite"));
    fs::create_dir_all(tree.join("few")).unwrap();
    fs::create_dir_all(tree.join("many/inner")).unwrap();
    fs::write(tree.join("few/small"), [1; 10_000]).unwrap();
    fs::write(tree.join("many/inner/large\x1b[2J"), vec![1; 300_000]).unwrap();
    sweep(tree.to_str().unwrap(), &index, &[]);
    // Only on a terminal.
    let refused = run(&["browse", &index]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("terminal"), "{refused:?}");

    let mut browser = OnTerminal::start(&["browse", &index]);
    let drawn = browser.read_until("q quit");
    let (many, few) = (drawn.find("many/").unwrap(), drawn.find("few/").unwrap());
    assert!(many < few, "{drawn}");
    assert!(drawn.contains("2 entries"), "{drawn}");
    // Into the largest one, twice, by name first and back, and what is there does not command the terminal.
    browser.press("n");
    let drawn = browser.read_until("q quit");
    assert!(drawn.find("few/").unwrap() < drawn.find("many/").unwrap(), "{drawn}");
    browser.press("sg\r");
    browser.read_until("inner/");
    browser.press("\r");
    let drawn = browser.read_until("large\\x1b[2J");
    assert!(drawn.contains("100.0 %"), "{drawn}");
    browser.press("h");
    browser.read_until("inner/");
    browser.press("q");
    browser.read_until("\x1b[?1049l");
    assert!(browser.running.wait().unwrap().success());

    // A signal gives the terminal back as well.
    let mut browser = OnTerminal::start(&["browse", &index]);
    browser.read_until("q quit");
    let id = rustix::process::Pid::from_child(&browser.running);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    browser.read_until("\x1b[?1049l");
    browser.running.wait().unwrap();
}

#[test]
fn a_signal_ends_the_browser_and_gives_the_terminal_back() {
    use rustix::process::{Pid, Signal, kill_process};
    use rustix::termios::{LocalModes, tcgetattr};
    let folder = harness::folder();
    let (tree, index) = (folder.path().join("tree"), path(&folder, "index.sqlite"));
    fs::create_dir(&tree).unwrap();
    sweep(tree.to_str().unwrap(), &index, &[]);
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut browser = OnTerminal::start(&["browse", &index]);
        browser.read_until("q quit");
        // The terminal stays while the test has it open.
        let name = rustix::pty::ptsname(&browser.terminal, Vec::new()).unwrap().into_string().unwrap();
        let side = fs::File::options().read(true).write(true).open(name).unwrap();
        let is_cooked =
            || tcgetattr(&side).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO);
        assert!(!is_cooked());
        kill_process(Pid::from_child(&browser.running), signal).unwrap();
        browser.read_until("\x1b[?1049l");
        let ended = browser.running.wait().unwrap();
        assert_eq!(harness::shell_code(ended), code, "{signal:?}");
        assert!(is_cooked(), "{signal:?}");
    }
}
