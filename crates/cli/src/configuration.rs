//! The configuration file of daemons: flags under their names.
//!
//! The file is read as additional words of the command line, so that the name, the values and the meaning of a setting
//! are defined once, at the flag. The command line itself takes precedence. Settings of a role are in a table of the
//! role's name.

use std::any::TypeId;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueEnum};
use nacre_quantity::Escaped;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::arguments::setting_error;
use crate::command::reflect::{ACCUMULATED, Settings as ReflectSettings};
use crate::command::serve::Role;
use crate::failure::Failure;

/// The file that is read if none is named and it exists.
const FILE_DEFAULT: &str = "nacre.toml";
/// The table of the role `reflect`, and the flag for its settings.
const REFLECT: &str = "reflect";
/// Flags that are not settings.
const NO_SETTINGS: &[&str] = &["config", "fence", "help", "json", "version", REFLECT];

/// Settings whose texts may be numbers.
const NUMBERS_TOO: &[&str] = &["socket-group", "socket-mode"];

/// Settings of a daemon that only reflects, in its role's table. A daemon of several roles has them once, outside of
/// that table.
const ALONE: &[&str] = &["admin", "http", "http-host", "http-open", "log", "log-format", "metrics"];

/// Completes a command line from the file if it starts a daemon. `command` describes the program.
pub fn complete(
    command: &Command,
    mut words: Vec<OsString>,
    matches: &ArgMatches,
) -> Result<Vec<OsString>, Failure> {
    let mut built = command.clone();
    built.build();
    let serve = built.find_subcommand("serve").expect("the program has this command").clone();
    let alone = built.find_subcommand(REFLECT).and_then(|reflect| reflect.find_subcommand("serve"));
    let alone = alone.expect("the program has this command").clone();
    let (path, said) = match matches.subcommand() {
        Some(("serve", said)) => (&["serve"][..], said),
        Some((REFLECT, inner)) => match inner.subcommand() {
            Some(("serve", said)) => (&[REFLECT, "serve"][..], said),
            _ => return Ok(words),
        },
        _ => return Ok(words),
    };
    let Some(file) = File::read(said.get_one::<PathBuf>("config").map(PathBuf::as_path))? else {
        return Ok(words);
    };
    let (own, role) = file.settings(&serve, &alone)?;
    let is_said = |setting: &Setting| {
        // The id is unknown where the command has no such flag.
        let source = said.try_contains_id(&setting.id).ok().and_then(|_| said.value_source(&setting.id));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let more: Vec<OsString> = match path {
        [_] => {
            let pairs = said.get_many::<OsString>(REFLECT).into_iter().flatten();
            let named: Vec<&[u8]> =
                pairs.filter_map(|pair| pair.as_bytes().split(|byte| *byte == b'=').next()).collect();
            let roles = match said.value_source("roles") {
                Some(ValueSource::CommandLine) => {
                    said.get_many::<Role>("roles").into_iter().flatten().copied().collect()
                }
                _ => Role::named(&own),
            };
            let role = role
                .into_iter()
                // Without the role, its table is meant for another daemon.
                .filter(|_| roles.contains(&Role::Reflect))
                .filter(|setting| !ALONE.contains(&setting.name.as_str()))
                .filter(|setting| accumulates(setting) || !named.contains(&setting.name.as_bytes()))
                .flat_map(|setting| setting.words)
                .map(|word| format!("--{REFLECT}={}", word.trim_start_matches("--")));
            let own = own.into_iter().filter(|setting| !is_said(setting)).flat_map(|setting| setting.words);
            own.chain(role).map(OsString::from).collect()
        }
        _ => {
            let role = role.into_iter().filter(|setting| accumulates(setting) || !is_said(setting));
            role.flat_map(|setting| setting.words).map(OsString::from).collect()
        }
    };
    // They are inserted before the words of the line, so that the later of two values takes precedence.
    let place = place_of(command, &words, path);
    words.splice(place..place, more);
    Ok(words)
}

/// Returns whether the values of the file and of the line apply together.
fn accumulates(setting: &Setting) -> bool {
    ACCUMULATED.contains(&setting.name.as_str())
}

/// Returns the index of the word after the one that names the command.
fn place_of(command: &Command, words: &[OsString], path: &[&str]) -> usize {
    let names = |end: &usize| {
        // If the words up to here are parsed alone, arguments may be missing, but the command is recognized.
        let matches = command.clone().ignore_errors(true).try_get_matches_from(&words[..*end]);
        let Ok(matches) = matches else { return false };
        let mut level = &matches;
        path.iter().all(|name| match level.subcommand() {
            Some((found, inner)) if found == *name => {
                level = inner;
                true
            }
            _ => false,
        })
    };
    (1..=words.len()).find(names).unwrap_or(words.len())
}

/// A setting of the file, as words of a command line.
struct Setting {
    name: String,
    id: String,
    words: Vec<String>,
}

impl Role {
    /// Returns the roles that the file names.
    fn named(settings: &[Setting]) -> Vec<Role> {
        let words =
            settings.iter().filter(|setting| setting.name == "roles").flat_map(|setting| &setting.words);
        let names = words.filter_map(|word| word.split_once('=')).flat_map(|(_, names)| names.split(','));
        names.filter_map(|name| Role::from_str(name, false).ok()).collect()
    }
}

/// Returns the reason not to believe a file, if there is one. One that is `named` is the user's own choice, unless
/// everybody can write it; one that merely lies in the current folder has to be the user's own, or root's.
fn distrust(file: &fs::Metadata, named: bool) -> Option<String> {
    // Pipes and devices have been chosen, whoever they belong to.
    if named && !file.is_file() {
        return None;
    }
    let (mode, owner) = (file.mode() & 0o7777, file.uid());
    let own = rustix::process::geteuid().as_raw();
    if !named && owner != own && owner != 0 {
        return Some(format!(
            "they belong to user {owner}, who is neither you nor root; to use them anyway, name the file with --config"
        ));
    }
    match named {
        true if mode & 0o002 != 0 => {
            Some(format!("everybody may change them (mode {mode:o}); run \"chmod o-w\""))
        }
        false if mode & 0o022 != 0 => Some(format!(
            "others may change them (mode {mode:o}); run \"chmod go-w\", or name the file with --config"
        )),
        _ => None,
    }
}

/// The text of the file, and its name for messages.
struct File {
    name: String,
    text: String,
}

impl File {
    /// Reads the file that was named, or the default one, if there is one. A file that others could have written is
    /// refused: whoever writes it decides what is served, and to whom.
    fn read(named: Option<&Path>) -> Result<Option<File>, Failure> {
        let path = match named {
            Some(path) => path,
            None if Path::new(FILE_DEFAULT).exists() => Path::new(FILE_DEFAULT),
            None => return Ok(None),
        };
        let name = Escaped::of(path).to_string();
        let failed =
            |error: io::Error| Failure::Usage(format!("cannot read the settings in {name}: {error}"));
        let mut file = fs::File::open(path).map_err(failed)?;
        // The open file is looked at, and not the name, which may be another's by now.
        distrust(&file.metadata().map_err(failed)?, named.is_some()).map_or(Ok(()), |why| {
            Err(Failure::Usage(format!("the settings in {name} are not read: {why}")))
        })?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Failure::Usage(format!("the settings in {name} are not UTF-8")),
            _ => failed(error),
        })?;
        Ok(Some(File { name, text }))
    }

    /// Returns the settings of the daemon, which are flags of `serve`, and those of the role `reflect`, which are flags
    /// of `alone`.
    fn settings(&self, serve: &Command, alone: &Command) -> Result<(Vec<Setting>, Vec<Setting>), Failure> {
        let table = DeTable::parse(&self.text).map_err(|error| {
            let why = format!("it is not TOML: {}", error.message());
            self.wrong(error.span().map_or(0, |span| span.start), &why)
        })?;
        let (mut own, mut role) = (Vec::new(), Vec::new());
        for (key, value) in table.get_ref() {
            match value.get_ref() {
                DeValue::Table(table) if key.get_ref() == REFLECT => {
                    for (key, value) in table {
                        role.push(self.setting(alone, key, value)?);
                    }
                }
                _ => own.push(self.setting(serve, key, value)?),
            }
        }
        Ok((own, role))
    }

    fn setting(
        &self,
        command: &Command,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Setting, Failure> {
        let (at, name) = (key.span().start, key.get_ref().as_ref());
        let Some(flag) = flags(command).find(|flag| names(flag).any(|known| known == name)) else {
            let near = nearest(name, flags(command).filter_map(Arg::get_long));
            let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
            return Err(self.wrong(at, &format!("there is no setting \"{name}\"{near}")));
        };
        let values = match value.get_ref() {
            DeValue::Array(values) if matches!(flag.get_action(), ArgAction::Append) => {
                values.iter().map(Spanned::get_ref).collect()
            }
            value => vec![value],
        };
        let mut words = Vec::new();
        for value in values {
            words.extend(self.word(flag, name, value, at)?);
        }
        // Values are checked here, where their line is known.
        let alone = Command::new("nacre").no_binary_name(true).disable_help_flag(true).arg(flag.clone());
        if let Err(error) = alone.try_get_matches_from(&words) {
            return Err(self.wrong(at, &setting_error(&error)));
        }
        Ok(Setting { name: name.to_owned(), id: flag.get_id().to_string(), words })
    }

    /// Converts a value of the file to a word of the command line; `None` if it is a switch that is off.
    fn word(
        &self,
        flag: &Arg,
        name: &str,
        value: &DeValue<'_>,
        at: usize,
    ) -> Result<Option<String>, Failure> {
        let wrong = |expected: &str| {
            self.wrong(at, &format!("\"{name}\" must be {expected}, but is of type {}", value.type_str()))
        };
        match (flag.get_action(), value) {
            (ArgAction::SetTrue, DeValue::Boolean(on)) => Ok(on.then(|| format!("--{name}"))),
            (ArgAction::SetTrue, _) => Err(wrong("true or false")),
            (_, DeValue::String(text)) => Ok(Some(format!("--{name}={text}"))),
            // In decimal digits, which are taken for octal ones, it would be another mode.
            (_, DeValue::Integer(number)) if name == "socket-mode" && number.radix() != 10 => Err(self
                .wrong(at, "\"socket-mode\" is a string of octal digits: put it in quotes, as in \"0660\"")),
            // A number is no address, path or level; the flag would take it for one.
            (_, DeValue::Integer(_)) if is_text(flag) && !NUMBERS_TOO.contains(&name) => Err(wrong("a text")),
            (_, DeValue::Integer(number)) => {
                let number = i128::from_str_radix(number.as_str(), number.radix());
                number.map(|number| Some(format!("--{name}={number}"))).map_err(|_| wrong("a number"))
            }
            (ArgAction::Append, _) => Err(wrong("a text, a number, or a list of these")),
            _ => Err(wrong("a text or a number")),
        }
    }

    fn wrong(&self, at: usize, why: &str) -> Failure {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        let why = why.replace('\n', " ");
        Failure::Usage(format!(
            "line {line} of {}: {why}; \"nacre serve --help\" and \"nacre reflect serve --help\" explain the settings",
            self.name
        ))
    }
}

/// Returns the flags of a command that may be in the file.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|flag| flag.get_long().is_some_and(|name| !NO_SETTINGS.contains(&name)))
}

/// Returns whether the value of a flag is any text, or a path.
fn is_text(flag: &Arg) -> bool {
    let kind = flag.get_value_parser().type_id();
    kind == TypeId::of::<String>() || kind == TypeId::of::<OsString>() || kind == TypeId::of::<PathBuf>()
}

/// Returns the names of a flag: the current one, and older ones.
fn names(flag: &Arg) -> impl Iterator<Item = &str> {
    flag.get_long().into_iter().chain(flag.get_all_aliases().unwrap_or_default())
}

/// The least likeness of two names of which one may be meant by the other, from 0 to 1.
const LIKENESS_MIN: f64 = 0.75;

/// Returns the known name that is most similar to another, if one is near.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |known: &str| strsim::jaro_winkler(name, known);
    let near = known.filter(|known| likeness(known) >= LIKENESS_MIN);
    near.max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
}

/// Returns the settings of the role `reflect`, from pairs `NAME=VALUE` or names of switches.
pub fn reflect_settings(pairs: &[OsString]) -> Result<ReflectSettings, Failure> {
    ReflectSettings::from_pairs(pairs).map_err(|why| {
        Failure::Usage(format!("--{REFLECT}: {why}; \"nacre reflect serve --help\" lists the settings"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Line;

    /// Each setting of a daemon, in the file and on the command line.
    const SERVE: &[(&str, &str, &[&str])] = &[
        ("store", "\"file:x\"", &["--store", "file:x"]),
        ("key", "\"some/key\"", &["--key", "some/key"]),
        ("roles", "[\"store\", \"reflect\"]", &["--roles", "store,reflect"]),
        ("lock-lease", "\"2s\"", &["--lock-lease", "2s"]),
        ("lock-stripe", "\"1MiB\"", &["--lock-stripe", "1MiB"]),
        ("lock-table", "\"unrolled\"", &["--lock-table", "unrolled"]),
        ("meta-rank", "1", &["--meta-rank", "1"]),
        ("meta-lease", "\"2s\"", &["--meta-lease", "2s"]),
        ("meta-takeover", "\"1s\"", &["--meta-takeover", "1s"]),
        ("listen", "[\"unix:/a\", \"127.0.0.1:0\"]", &["--listen", "unix:/a", "--listen", "127.0.0.1:0"]),
        ("open", "true", &["--open"]),
        ("socket-mode", "\"0660\"", &["--socket-mode", "0660"]),
        ("socket-group", "\"daemon\"", &["--socket-group", "daemon"]),
        ("members", "[\"a:1\", \"b:2\"]", &["--members", "a:1,b:2"]),
        ("member", "\"a:1\"", &["--member", "a:1"]),
        ("members-version", "3", &["--members-version", "3"]),
        ("durability", "\"50ms\"", &["--durability", "50ms"]),
        ("capacity", "\"1GiB\"", &["--capacity", "1GiB"]),
        ("beacons", "\"2s\"", &["--beacons", "2s"]),
        ("down-after", "\"10s\"", &["--down-after", "10s"]),
        ("segment-bytes", "65536", &["--segment-bytes", "64KiB"]),
        ("snapshot-bytes", "0x1000", &["--snapshot-bytes", "4096"]),
        ("no-pacing", "true", &["--no-pacing"]),
        ("region-statistics", "true", &["--region-statistics"]),
        ("threads", "2", &["--threads", "2"]),
        ("poll", "\"50us\"", &["--poll", "50us"]),
        ("connections-max", "7", &["--connections-max", "7"]),
        ("held-bytes-max", "\"1MiB\"", &["--held-bytes-max", "1MiB"]),
        ("mailbox-bytes-max", "\"1MiB\"", &["--mailbox-bytes-max", "1MiB"]),
        ("unproven-max", "9", &["--unproven-max", "9"]),
        ("sessions-max", "0", &["--sessions-max", "0"]),
        ("session-timeout", "\"5min\"", &["--session-timeout", "5min"]),
        ("http", "\"127.0.0.1:0\"", &["--http", "127.0.0.1:0"]),
        ("http-open", "true", &["--http-open"]),
        ("http-host", "[\"a\", \"b\"]", &["--http-host", "a,b"]),
        ("log", "\"debug\"", &["--log", "debug"]),
        ("log-format", "\"json\"", &["--log-format", "json"]),
    ];

    /// A public key, and a list of it.
    const TOKEN_KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    const TOKEN_KEYS: &str = "[\"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a\"]";

    /// Each setting of a reflector.
    const REFLECTOR: &[(&str, &str, &[&str])] = &[
        ("store", "\"mem:\"", &["--store", "mem:"]),
        ("key", "\"some/key\"", &["--key", "some/key"]),
        ("listen", "[\"127.0.0.1:1\", \"[::1]:2\"]", &["--listen", "127.0.0.1:1,[::1]:2"]),
        ("groups", "[7500, \"7600-7610\"]", &["--groups", "7500", "--groups", "7600-7610"]),
        (
            "group",
            "[\"5:sequence,open\", \"*:members=7\"]",
            &["--group", "5:sequence,open", "--group", "*:members=7"],
        ),
        ("ids", "9", &["--ids", "9"]),
        ("open", "true", &["--open"]),
        ("token-key", TOKEN_KEYS, &["--token-key", TOKEN_KEY]),
        ("state-from", "\"none\"", &["--state-from", "none"]),
        ("plane", "\"batch\"", &["--plane", "batch"]),
        ("max-age", "\"3s\"", &["--max-age", "3s"]),
        ("device", "\"eth0,eth1\"", &["--device", "eth0", "--device", "eth1"]),
        ("heartbeat", "\"1s\"", &["--heartbeat", "1s"]),
        ("expiry", "\"5s\"", &["--expiry", "5s"]),
        ("state-every", "\"0s\"", &["--state-every", "0s"]),
        ("advertise", "[\"192.0.2.1:1\"]", &["--advertise", "192.0.2.1:1"]),
        ("standby", "[\"192.0.2.1:1\"]", &["--standby", "192.0.2.1:1"]),
        ("allow-loopback", "true", &["--allow-loopback"]),
        ("allow-privileged", "true", &["--allow-privileged"]),
        ("joins-per-second", "3", &["--joins-per-second", "3"]),
        ("backlog-bytes", "\"1MiB\"", &["--backlog-bytes", "1MiB"]),
        ("admin", "\"none\"", &["--admin", "none"]),
        ("http", "\"none\"", &["--http", "none"]),
        ("http-open", "true", &["--http-open"]),
        ("http-host", "[\"a\", \"b\"]", &["--http-host", "a,b"]),
        ("log", "\"debug\"", &["--log", "debug"]),
        ("log-format", "\"json\"", &["--log-format", "json"]),
    ];

    /// Returns the command line that a file and a line result in, as text.
    fn read(path: &[&str], text: &str, words: &[&str]) -> Result<String, Failure> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let shown = file.path().to_str().unwrap();
        let all = [&["nacre"], path, &["--config", shown], words].concat();
        let line = Line::read(all.into_iter().map(OsString::from).collect())?;
        Ok(format!("{line:?}").replace(shown, "FILE"))
    }

    /// Returns the names of the settings that a command has.
    fn known(path: &[&str]) -> BTreeSet<String> {
        let mut command = Line::command();
        command.build();
        let command = path.iter().fold(&command, |level, name| level.find_subcommand(name).unwrap());
        flags(command).filter_map(Arg::get_long).map(str::to_owned).collect()
    }

    #[test]
    fn every_flag_of_serve_may_stand_in_the_file_and_means_the_same() {
        let names: BTreeSet<String> = SERVE.iter().map(|(name, ..)| name.to_string()).collect();
        assert_eq!(names, known(&["serve"]), "a flag that is new is tried here too");
        for (name, value, words) in SERVE {
            let from_file = read(&["serve"], &format!("{name} = {value}\n"), &[]).unwrap();
            assert_eq!(from_file, read(&["serve"], "", words).unwrap(), "{name}");
            assert_ne!(from_file, read(&["serve"], "", &[]).unwrap(), "{name}");
        }
        let old = read(&["serve"], "metrics = \"none\"", &[]).unwrap();
        assert_eq!(old, read(&["serve"], "", &["--http", "none"]).unwrap());
    }

    #[test]
    fn every_flag_of_a_reflector_may_stand_in_its_part_and_means_the_same() {
        let path = ["reflect", "serve"];
        let names: BTreeSet<String> = REFLECTOR.iter().map(|(name, ..)| name.to_string()).collect();
        assert_eq!(names, known(&path), "a flag that is new is tried here too");
        for (name, value, words) in REFLECTOR {
            let text = format!("log = \"trace\"\n[reflect]\n{name} = {value}\n");
            assert_eq!(read(&path, &text, &[]).unwrap(), read(&path, "", words).unwrap(), "{name}");
            // With other roles beside it, the same settings are given as pairs.
            let both = read(&["serve"], &text, &["--roles", "reflect"]).unwrap();
            let is_own = ALONE.contains(name);
            assert_ne!(both.contains(&format!("\"{name}")), is_own, "{name}: {both}");
        }
    }

    #[test]
    fn the_line_wins_and_groups_add_up() {
        let text = "log = \"warn\"\nlisten = [\"unix:/a\"]\n[reflect]\nplane = \"sendto\"\ngroup = [\"5:sequence\"]\n";
        let both = read(&["serve"], text, &["--listen", "unix:/b"]).unwrap();
        assert_eq!(both, read(&["serve"], "log = \"warn\"", &["--listen", "unix:/b"]).unwrap());
        let words = ["--plane", "batch", "--group", "5:open"];
        let both = read(&["reflect", "serve"], text, &words).unwrap();
        let all = ["--plane", "batch", "--group", "5:sequence", "--group", "5:open"];
        assert_eq!(both, read(&["reflect", "serve"], "", &all).unwrap());
        let pairs = ["--roles", "reflect", "--reflect", "plane=batch", "--reflect", "group=5:open"];
        let both = read(&["serve"], text, &pairs).unwrap();
        assert!(both.contains(r#"["group=5:sequence", "plane=batch", "group=5:open"]"#), "{both}");
        // A word that is another flag's value is not mistaken for the command.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "log = \"warn\"").unwrap();
        let words = ["nacre", "--store", "serve", "serve", "--config", file.path().to_str().unwrap()];
        let line = Line::read(words.into_iter().map(OsString::from).collect()).unwrap();
        assert_eq!(line.common.store, Some("serve".into()));
        assert!(format!("{line:?}").contains("log: Some(\"warn\")"), "{line:?}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, parts) in [
            ("open = true\ncolour = 1", &["line 2", "colour"][..]),
            ("segment-byte = 1", &["line 1", "\"segment-bytes\""]),
            ("[reflect]\nheartbaet = \"1s\"", &["line 2", "\"heartbeat\""]),
            ("[reflct]\nheartbeat = \"1s\"", &["line 1", "reflct"]),
            ("\nsegment-bytes = -1", &["line 2", "-1"]),
            ("segment-bytes = \"large\"", &["line 1", "large"]),
            ("threads = 1.5", &["line 1", "a number"]),
            ("log = [\"info\"]", &["line 1", "log"]),
            ("open = \"yes\"", &["line 1", "true or false"]),
            ("roles = [\"store\", \"shop\"]", &["line 1", "shop"]),
            ("[reflect]\nplane = \"steam\"", &["line 2", "steam"]),
            ("[x", &["line 1", "not TOML"]),
            ("[reflect]\nids = -1", &["line 2", "--ids", "it must be 0 to"]),
            ("[reflect]\nadvertise = \"x\"", &["line 2", "--advertise", "an IP address with a port"]),
            ("session-timeout = \"soon\"", &["line 1", "session-timeout", "soon"]),
            ("sessions-max = -1", &["line 1", "sessions-max", "-1"]),
            ("unproven-max = 0", &["line 1", "unproven-max", "at least 1"]),
            ("mailbox-bytes-max = \"lots\"", &["line 1", "mailbox-bytes-max", "lots"]),
            ("config = \"other\"", &["line 1", "config"]),
            ("socket-mode = 0o660", &["line 1", "socket-mode", "quotes"]),
        ] {
            let Err(Failure::Usage(sentence)) = read(&["serve"], text, &[]) else { panic!("{text}") };
            assert!(parts.iter().all(|part| sentence.contains(part)), "{text}: {sentence}");
        }
    }
}
