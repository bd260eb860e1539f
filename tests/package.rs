//! The packages that `make package` makes hold what `make install` installs, and work.

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::run_with;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(project());
    // The programs that cargo runs this test with are not those that make would build.
    command.env_remove("MAKEFLAGS").env_remove("CARGO_TARGET_DIR");
    run_with(command, b"").text()
}

#[test]
fn packages_hold_what_is_installed_and_work() {
    for (tool, package) in [("dpkg-shlibdeps", "dpkg-dev"), ("dpkg-deb", "dpkg"), ("rpmbuild", "rpm")] {
        let there = Command::new(tool).arg("--version").output().is_ok();
        assert!(there, "{tool} is missing: apt-get install {package}");
    }
    let folder = harness::folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let program = env!("CARGO_BIN_EXE_nacre");
    // Another program stands in for that of the studies, which is not built with this test.
    std::fs::copy("/usr/bin/true", at("nacre-bench")).unwrap();
    let (nacre, bench) = (format!("NACRE={program}"), format!("NACRE_BENCH={}", at("nacre-bench")));
    let (target, stage) = (format!("TARGET={}", at("none")), format!("DESTDIR={}", at("stage")));
    let install = ["-s", "install-files", &nacre, &bench, &target, &stage, "PREFIX=/usr"];
    run("make", &install);
    run("scripts/package", &["--stage", &at("stage"), &at("made")]);

    let built: Vec<PathBuf> =
        std::fs::read_dir(at("made")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let built = |ending: &str| {
        let found = built.iter().find(|path| path.extension().is_some_and(|found| found == ending));
        found.unwrap_or_else(|| panic!("no {ending} in {built:?}")).display().to_string()
    };
    let (deb, rpm) = (built("deb"), built("rpm"));
    let installed = [
        "/usr/bin/nacre",
        "/usr/share/man/man1/nacre-put.1.gz",
        "/usr/share/man/man1/nacre-keys-set.1.gz",
        "/usr/share/bash-completion/completions/nacre",
        "/usr/lib/systemd/system/nacre.service",
        "/usr/share/nacre/alerts.yml",
        "/etc/nacre/nacre.toml",
        "/etc/nacre/reflect.toml",
    ];
    let listed = run("dpkg-deb", &["--contents", &deb]);
    let packed = run("rpm", &["-qlp", &rpm]);
    for file in installed {
        assert!(listed.contains(&format!(".{file}\n")), "{file} is not in\n{listed}");
        assert!(packed.lines().any(|line| line == file), "{file} is not in\n{packed}");
    }
    // Settings that somebody changed survive upgrades.
    let settings = "/etc/nacre/nacre.toml\n/etc/nacre/reflect.toml";
    assert_eq!(run("dpkg-deb", &["--info", &deb, "conffiles"]).trim(), settings);
    assert_eq!(run("rpm", &["-qcp", &rpm]).trim(), settings);
    assert!(run("dpkg-deb", &["--field", &deb, "Depends"]).contains("libc6"));

    run("dpkg-deb", &["--extract", &deb, &at("root")]);
    let unit = std::fs::read_to_string(at("root/usr/lib/systemd/system/nacre.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/nacre serve --config /etc/nacre/nacre.toml\n"), "{unit}");
    let version = format!("nacre {}", env!("CARGO_PKG_VERSION"));
    assert!(run(&at("root/usr/bin/nacre"), &["--version"]).starts_with(&version));
    // The settings are those of the services: a daemon takes them, up to the folder that is not here.
    let check = |words: &[&str]| {
        let mut command = Command::new(at("root/usr/bin/nacre"));
        command.args(words);
        run_with(command, b"")
    };
    let (config, socket) = (at("root/etc/nacre/nacre.toml"), format!("unix:{}", at("socket")));
    let store = ["serve", "--config", &config, "--store", "file:/proc/none", "--listen", &socket];
    check(&store).failed(1, &["/proc/none"]);
    let reflect =
        ["reflect", "serve", "--config", &at("root/etc/nacre/reflect.toml"), "--listen", "192.0.2.1:7400"];
    check(&reflect).failed(1, &["192.0.2.1:7400"]);
}
