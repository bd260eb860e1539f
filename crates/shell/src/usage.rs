//! Errors in a command line, and the help that one asks for, as they are printed.

use std::cmp::Reverse;
use std::error::Error as _;
use std::io::Write as _;

use clap::error::ContextValue;
use nacre_quantity::{Escaped, escaped_text};

use crate::failure::Failure;

/// Returns the message about an error in a command line, with its colours, and with the words of the line escaped: they may have
/// been taken from the names of files.
pub fn message(error: &clap::Error) -> String {
    let mut texts: Vec<(String, String)> = Vec::new();
    for (_, value) in error.context() {
        let words: &[String] = match value {
            ContextValue::String(word) => std::slice::from_ref(word),
            ContextValue::Strings(words) => words,
            _ => &[],
        };
        texts.extend(words.iter().map(|word| (word.clone(), escaped(word))));
    }
    // The reason that the parser of a value gave may have several lines.
    texts.extend(error.source().map(|reason| (reason.to_string(), escaped_text(&reason.to_string()))));
    // One may be part of another.
    texts.sort_by_key(|(raw, _)| Reverse(raw.len()));
    texts.retain(|(raw, shown)| raw != shown);
    texts.iter().fold(error.render().ansi().to_string(), |text, (raw, shown)| text.replace(raw, shown))
}

/// Returns a word as it is printed, with its backslashes as they were typed: names are typed with escapes.
fn escaped(word: &str) -> String {
    let parts: Vec<String> = word.split('\\').map(|part| Escaped::of(part).to_string()).collect();
    parts.join("\\")
}

/// Prints the message about an error in a command line on standard error, or the help that was asked for on standard output. Returns
/// the failure that ends the program, with exit code 2 or 0.
pub fn refuse(error: &clap::Error, message: &str) -> Failure {
    // The streams leave colours out where they are not wanted.
    if error.use_stderr() {
        let _ = write!(anstream::stderr(), "{message}");
        return Failure::Command { code: 2, sentence: None };
    }
    let mut output = anstream::stdout();
    match write!(output, "{message}").and_then(|()| output.flush()) {
        Ok(()) => Failure::Command { code: 0, sentence: None },
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn words_of_a_line_command_no_terminal_in_a_message_about_them() {
        let number = |text: &str| text.parse::<u8>().map_err(|_| format!("\"{text}\" is not a number"));
        let command = Command::new("nacre")
            .arg(Arg::new("count").long("count").value_parser(number))
            .subcommand(Command::new("ls"));
        for words in [
            &["nacre", "--\x1b[2Jx"][..],
            &["nacre", "\x1b[2Jx"],
            &["nacre", "ls", "a\n\x1b[2Jx"],
            &["nacre", "--count", "a\\b\x1b[2Jx"],
        ] {
            let error = command.clone().try_get_matches_from(words).unwrap_err();
            let message = message(&error);
            assert!(message.contains("\\x1b[2Jx") && !message.contains("\x1b[2J"), "{message:?}");
        }
        let error = command.try_get_matches_from(["nacre", "--count", "a\\b\x1b"]).unwrap_err();
        let message = message(&error);
        assert!(message.contains("\"a\\b\\x1b\" is not a number"), "{message:?}");
    }
}
