//! Quantities in the form in which people type and read them.

use std::str::FromStr;
use std::time::Duration;

pub use nacre_quantity::{grouped, parse_size, parse_time, size};

/// A time, such as `500ms`, `30s` or `10min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_time(text).map(Time)
    }
}

/// A size, such as `64KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text).map(Size)
    }
}

/// Returns a count with its unit, such as `1 byte` or `2 bytes`.
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// Checks of a program's flags, for its tests.
pub mod check {
    use clap::error::ErrorKind;
    use clap::{Arg, Command};

    /// Spellings of one time each, and of one size each. A flag may bound what it takes, so there is a long and a short one.
    const TIMES: [&[&str]; 2] =
        [&["1m", "1min", "1 min", "1 m", "60s", "60 s", "60000ms"], &["5ms", "5 ms", "5000us", "5000 us"]];
    const SIZES: [&[&str]; 2] = [
        &["1KiB", "1 KiB", "1k", "1K", "1kib", "1 kib", "1024", "1024B", "1024 b"],
        &["64MiB", "64 MiB", "64m", "64 M", "65536KiB", "65536 k", "67108864"],
    ];
    /// Times that no flag takes, whatever it is for.
    const NO_TIMES: [&str; 5] = ["1 parsec", "1.5s", "1 M", "m", "-1s"];
    /// Sizes that no flag takes.
    const NO_SIZES: [&str; 5] = ["1 parsec", "1.5MiB", "1kb", "KiB", "-1KiB"];

    /// Checks that every flag of a program whose value is called `TIME` or `SIZE` takes all spellings of one value alike, takes
    /// one of the values at least, and takes nothing else. Returns the number of such flags. `others` are the flags of which
    /// that is not asked: their values follow another rule, or are only read when the command runs.
    ///
    /// # Panics
    /// If a flag does not.
    pub fn flags(mut command: Command, others: &[&str]) -> usize {
        let line = command.clone();
        command.build();
        let (mut checked, mut skipped) = (0, 0);
        let mut path = vec![command.get_name().to_owned()];
        each(&command, &mut path, &mut |path, arg| {
            let (rights, wrongs) = match arg.get_value_names().unwrap_or_default() {
                [name] if name.as_str() == "TIME" => (TIMES, NO_TIMES),
                [name] if name.as_str() == "SIZE" => (SIZES, NO_SIZES),
                _ => return,
            };
            let Some(long) = arg.get_long() else { return };
            let shown = format!("{} --{long}", path.join(" "));
            if others.contains(&shown.as_str()) {
                skipped += 1;
                return;
            }
            let takes = |value: &str| {
                let words = path.iter().cloned().chain([format!("--{long}={value}")]);
                let error = line.clone().try_get_matches_from(words).err();
                // What else a command needs is missing here.
                !error.is_some_and(|error| {
                    matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue)
                })
            };
            let mut taken = false;
            for spellings in rights {
                let first = takes(spellings[0]);
                taken |= first;
                for spelling in spellings {
                    assert_eq!(takes(spelling), first, "{shown} \"{spelling}\", beside \"{}\"", spellings[0]);
                }
            }
            assert!(taken, "{shown} takes neither of {rights:?}");
            for wrong in wrongs {
                assert!(!takes(wrong), "{shown} takes \"{wrong}\"");
            }
            checked += 1;
        });
        assert_eq!(skipped, others.len(), "{others:?} are not all flags");
        checked
    }

    /// Calls `look` with each argument, and the path of its command.
    fn each(command: &Command, path: &mut Vec<String>, look: &mut impl FnMut(&[String], &Arg)) {
        for arg in command.get_arguments() {
            look(path, arg);
        }
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            path.push(inner.get_name().to_owned());
            each(inner, path, look);
            path.pop();
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::quantity::parse_time;

        fn program(arg: Arg) -> Command {
            Command::new("nacre").subcommand(
                Command::new("reflect")
                    .arg(arg.long("for").value_name("TIME"))
                    .arg(Arg::new("what").required(true)),
            )
        }

        #[test]
        fn a_flag_with_the_grammar_passes() {
            assert_eq!(flags(program(Arg::new("time").value_parser(parse_time)), &[]), 1);
            let bounded = |text: &str| {
                parse_time(text).and_then(|time| match time.as_millis() < 10 {
                    true => Ok(time),
                    false => Err("too long".to_owned()),
                })
            };
            assert_eq!(flags(program(Arg::new("time").value_parser(bounded)), &[]), 1);
            assert_eq!(flags(program(Arg::new("time")), &["nacre reflect --for"]), 0);
        }

        #[test]
        #[should_panic(expected = "nacre reflect --for \"1min\"")]
        fn a_flag_that_lacks_a_spelling_is_found() {
            let own = |text: &str| {
                text.strip_suffix("m").ok_or("no").and_then(|n| n.parse::<u64>().map_err(|_| "no"))
            };
            flags(program(Arg::new("time").value_parser(own)), &[]);
        }

        #[test]
        #[should_panic(expected = "takes \"1 parsec\"")]
        fn a_flag_that_takes_anything_is_found() {
            flags(program(Arg::new("time")), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_for_people() {
        assert_eq!(count(1, "byte"), "1 byte");
        assert_eq!(count(1000, "byte"), "1,000 bytes");
    }
}
