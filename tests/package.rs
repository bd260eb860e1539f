//! The packages that `make package` makes hold what `make install` installs, and work.

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::run_with;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(project());
    // The programs that cargo runs this test with are not those that make would build.
    command.env_remove("MAKEFLAGS").env_remove("CARGO_TARGET_DIR");
    command
}

fn run(program: &str, arguments: &[&str]) -> String {
    run_with(command(program, arguments), b"").text()
}

/// Runs what makes packages, with settings for its tools in a folder: these packages are made quickly, and need not be small.
fn make(folder: &Path, program: &str, arguments: &[&str]) {
    std::fs::write(folder.join(".rpmmacros"), "%_binary_payload w1.gzdio\n").unwrap();
    let mut command = command(program, arguments);
    command.env("HOME", folder).env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    run_with(command, b"").text();
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
    make(folder.path(), "scripts/package", &["--stage", &at("stage"), &at("made")]);

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

    // Folders of the package's own go with it.
    for folder in ["/etc/nacre", "/usr/share/nacre"] {
        assert!(packed.lines().any(|line| line == folder), "{folder} is not in\n{packed}");
    }
    for script in ["postinst", "prerm", "postrm"] {
        assert!(run("dpkg-deb", &["--info", &deb, script]).starts_with("#!/bin/sh\n"), "{script}");
    }
    // An image is made of this package, whatever other ones are in the folder.
    let image = std::fs::read_to_string(at("made/Containerfile")).unwrap();
    let file = Path::new(&deb).file_name().unwrap().to_str().unwrap();
    assert!(image.contains(&format!("COPY {file} /tmp/\n")) && !image.contains("nacre_*"), "{image}");

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
    let (config, key) = (at("made/container.toml"), at("key"));
    check(&["keygen", &key]).ok();
    // What stands after the image's name takes precedence over its settings.
    let anywhere = "127.0.0.1:0";
    let flags = ["--store", "file:/proc/none", "--key", &key, "--http", anywhere, "--listen", anywhere];
    check(&[&["serve", "--config", &config][..], &flags].concat()).failed(1, &["/proc/none"]);
    let reflect =
        ["reflect", "serve", "--config", &at("root/etc/nacre/reflect.toml"), "--listen", "192.0.2.1:7400"];
    check(&reflect).failed(1, &["192.0.2.1:7400"]);
}

/// Makes packages of a program that does nothing, in a version, and returns the paths of that for dpkg and that for rpm.
fn packages_of(folder: &Path, version: &str) -> (String, String) {
    let at = |name: &str| folder.join(version).join(name);
    for made in ["scripts", "stage/usr/bin", "stage/usr/share/man/man1"] {
        std::fs::create_dir_all(at(made)).unwrap();
    }
    std::fs::write(at("Cargo.toml"), format!("version = \"{version}\"\n")).unwrap();
    std::fs::write(at("stage/usr/share/man/man1/nacre.1"), ".TH nacre 1\n").unwrap();
    std::fs::copy("/usr/bin/true", at("stage/usr/bin/nacre")).unwrap();
    for file in ["scripts/package", "LICENSE", "CHANGELOG.md"] {
        std::fs::copy(project().join(file), at(file)).unwrap();
    }
    std::os::unix::fs::symlink(project().join("packaging"), at("packaging")).unwrap();
    let path = |name: &str| at(name).display().to_string();
    let words = [path("scripts/package"), "--stage".to_owned(), path("stage"), path("made")];
    make(&at(""), "bash", &words.each_ref().map(String::as_str));
    let made: Vec<PathBuf> =
        std::fs::read_dir(at("made")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let ending = |ending: &str| {
        let found = made.iter().find(|path| path.extension().is_some_and(|found| found == ending));
        found.unwrap_or_else(|| panic!("no {ending} in {made:?}")).display().to_string()
    };
    (ending("deb"), ending("rpm"))
}

#[test]
fn versions_of_packages_sort_as_versions_of_the_program() {
    let folder = harness::folder();
    let versions = ["0.1.0", "0.2.0-rc.1", "0.2.0-rc.2", "0.2.0"];
    let packages = versions.map(|version| packages_of(folder.path(), version));
    for pair in packages.windows(2) {
        let [deb, newer] = [0, 1].map(|at| run("dpkg-deb", &["--field", &pair[at].0, "Version"]));
        run("dpkg", &["--compare-versions", &deb, "lt", &newer]);
        let [rpm, newer] = [0, 1].map(|at| run("rpm", &["-qp", "--qf", "%{VERSION}", &pair[at].1]));
        let compared = format!("%{{lua: print(rpm.vercmp(\"{rpm}\", \"{newer}\"))}}");
        assert_eq!(run("rpm", &["--eval", &compared]), "-1", "{rpm} and {newer}");
    }
}

/// Runs a script of the Debian package in a shell whose commands only tell how they were called, and returns these calls.
/// No user is known there.
fn scripted(script: &str, words: &[&str]) -> String {
    let folder = harness::folder();
    let calls = folder.path().join("calls");
    let mut text = String::from("getent() { return 2; }\n");
    for name in ["adduser", "install", "systemctl", "rm", "deluser", "userdel"] {
        text.push_str(&format!("{name}() {{ echo {name} \"$@\" >>\"$calls\"; }}\n"));
    }
    text.push_str("script=$1; shift; . \"$script\"");
    let mut command = Command::new("sh");
    command.args(["-c", &text, "sh"]).arg(project().join("packaging/deb").join(script)).args(words);
    command.env("calls", &calls);
    assert_eq!(run_with(command, b"").code, 0, "{script} {words:?}");
    std::fs::read_to_string(calls).unwrap_or_default()
}

#[test]
fn scripts_make_the_user_and_its_folder_and_remove_neither() {
    let first = scripted("postinst", &["configure", ""]);
    assert!(first.contains("adduser --quiet --system --group ") && first.contains(" nacre\n"), "{first}");
    if !Path::new("/var/lib/nacre").exists() {
        assert!(first.contains("install -d -o nacre -g nacre -m 0700 /var/lib/nacre\n"), "{first}");
    }
    assert!(!first.contains("restart") && !first.contains("enable"), "{first}");
    let upgrade = scripted("postinst", &["configure", "0.0.9"]);
    let ends = [scripted("prerm", &["remove"]), scripted("prerm", &["upgrade", "0.2.0"])];
    // Without systemd there is nothing to start again, or to stop.
    if Path::new("/run/systemd/system").exists() {
        assert!(upgrade.contains("systemctl try-restart nacre.service nacre-reflect.service\n"), "{upgrade}");
        assert!(ends[0].contains("systemctl disable --now nacre.service"), "{ends:?}");
    }
    assert_eq!(ends[1], "", "the files are replaced under the services that run");
    for words in [["remove"], ["purge"], ["upgrade"]] {
        let calls = scripted("postrm", &words);
        assert!(!calls.contains("rm ") && !calls.contains("del"), "{words:?}: {calls}");
    }
}
