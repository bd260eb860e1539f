//! A daemon under a service manager: it tells when it is ready and when it stops, and its units are sound.

mod harness;

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{PATIENCE, Server, program, run_with};

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

#[test]
fn the_service_manager_is_told_when_a_daemon_is_ready_and_when_it_stops() {
    let folder = harness::folder();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let next_message = || {
        let mut message = [0; 256];
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    let mut command = program();
    let address = format!("unix:{}", folder.path().join("socket").display());
    command.args(["--json", "serve", "--store", "mem:", "--listen", &address, "--log", "warn"]);
    command.env("NOTIFY_SOCKET", &path);
    let server = Server::spawn(command);
    assert_eq!(next_message().trim(), "READY=1");
    server.run(["write", "a", "x"]).ok();
    assert!(server.stop(rustix::process::Signal::TERM).success());
    assert_eq!(next_message().trim(), "STOPPING=1");

    // A manager that is gone costs a warning.
    drop(manager);
    std::fs::remove_file(&path).unwrap();
    let mut command = program();
    command.args(["--json", "serve", "--store", "mem:", "--listen", &address, "--log", "warn"]);
    command.env("NOTIFY_SOCKET", &path);
    Server::spawn(command).run(["write", "a", "x"]).ok();
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let folder = harness::folder();
    for name in ["nacre.service", "nacre-reflect.service"] {
        let text = std::fs::read_to_string(units().join(name)).unwrap();
        // The program and its user are where they are installed, which is not here.
        let text = text.replace("/usr/local/bin/nacre", env!("CARGO_BIN_EXE_nacre"));
        let here = folder.path().join(name);
        std::fs::write(
            &here,
            text.replace("User=nacre", "User=daemon").replace("Group=nacre", "Group=daemon"),
        )
        .unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&here);
        let ended = run_with(verify, b"");
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{name}");
        // What an intruder could do, by systemd's own measure from 0 to 10: 9.6 is a service without any of it.
        let mut exposure = Command::new("systemd-analyze");
        exposure.args(["security", "--offline=true", "--threshold=30"]).arg(&here);
        let ended = run_with(exposure, b"");
        assert_eq!(ended.code, 0, "{name}: {}", String::from_utf8_lossy(&ended.stdout));
    }
}

#[test]
fn the_units_name_commands_and_settings_that_there_are() {
    for name in ["nacre.service", "nacre-reflect.service"] {
        let text = std::fs::read_to_string(units().join(name)).unwrap();
        let start =
            text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/nacre ")).unwrap();
        let (words, _) = start.split_once(" --config ").unwrap();
        let mut command = program();
        command.args(words.split(' ')).arg("--help");
        assert!(run_with(command, b"").text().contains("--config"), "{name}");
    }
}

#[test]
fn a_daemon_that_fails_is_started_again_unless_its_settings_are_wrong() {
    for name in ["nacre.service", "nacre-reflect.service"] {
        let text = std::fs::read_to_string(units().join(name)).unwrap();
        for line in ["Restart=on-failure", "RestartPreventExitStatus=2", "StartLimitIntervalSec=0"] {
            assert!(text.lines().any(|other| other == line), "{line} is not in {name}");
        }
    }
    let folder = harness::folder();
    let settings = folder.path().join("settings.toml");
    let address = format!("unix:{}", folder.path().join("socket").display());
    for (line, code) in [("durabillity = \"always\"", 2), ("store = \"file:/proc/none\"", 1)] {
        std::fs::write(&settings, format!("{line}\n")).unwrap();
        let mut command = program();
        command.args(["serve", "--listen", &address, "--config"]).arg(&settings);
        run_with(command, b"").failed(code, &[]);
    }
}
