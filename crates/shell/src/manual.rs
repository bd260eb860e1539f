//! Manual pages and long help, made from the definition of the commands and from what the program adds to it, and the style
//! of help.

use std::path::Path;

use clap::Command;
use clap::builder::styling::{AnsiColor, Styles};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use nacre_quantity::Escaped;

use crate::failure::Failure;

/// The colours of help, on terminals that have them.
pub const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold());

/// A line to type, and what it does.
pub type Example = (&'static str, &'static str);

/// The parts of manual pages beyond the definition of the commands. Commands are named by their paths: `keys set`; the program
/// itself by the empty one.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// The name of the program.
    pub program: &'static str,
    /// The examples of each command.
    pub examples: &'static [(&'static str, &'static [Example])],
    /// The names of pages to read beside that of a command.
    pub related: &'static [(&'static str, &'static [&'static str])],
    /// The environment variables of all commands, and their meanings.
    pub environment: &'static [(&'static str, &'static str)],
    /// The exit codes of commands whose help names no others, and their meanings.
    pub exit_status: &'static [(&'static str, &'static str)],
}

impl Manual {
    /// Adds the examples to the long help of each command.
    pub fn with_examples(&self, command: Command) -> Command {
        self.add_examples(command, "")
    }

    fn add_examples(&self, command: Command, path: &str) -> Command {
        let command = command.mut_subcommands(|inner| {
            let path = join(path, inner.get_name());
            self.add_examples(inner, &path)
        });
        let examples = self.examples_of(path);
        if examples.is_empty() {
            return command;
        }
        let said = command.get_after_long_help().or(command.get_after_help());
        let mut text = said.map_or_else(String::new, |said| format!("{}\n\n", said.ansi()));
        text.push_str("Examples:");
        for (line, meaning) in examples {
            text.push_str(&format!("\n  {line}\n      {meaning}"));
        }
        command.after_long_help(text)
    }

    /// Returns the manual page of the program.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn page(&self, mut command: Command) -> Result<Vec<u8>, Failure> {
        command.build();
        self.render(&without_help(command), "").map_err(Failure::io("make the manual page"))
    }

    /// Writes the manual pages of the program and of each of its commands into a folder: `nacre.1`, `nacre-put.1` and so on.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, mut command: Command, folder: &Path) -> Result<(), Failure> {
        command.build();
        self.write_all(&without_help(command), folder, "")
    }

    fn write_all(&self, command: &Command, folder: &Path, path: &str) -> Result<(), Failure> {
        let file = folder.join(format!("{}.1", self.page_name(path)));
        let written = self.render(command, path).and_then(|text| std::fs::write(&file, text));
        written.map_err(Failure::io(format!("write {}", Escaped::of(&file))))?;
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            self.write_all(inner, folder, &join(path, inner.get_name()))?;
        }
        Ok(())
    }

    fn examples_of(&self, path: &str) -> &'static [Example] {
        self.examples.iter().find(|(name, _)| *name == path).map_or(&[], |(_, examples)| examples)
    }

    /// Returns the examples of a command, or, if it only takes others, the first of each of those.
    fn examples_below(&self, command: &Command, path: &str) -> Vec<Example> {
        let own = self.examples_of(path);
        if !own.is_empty() {
            return own.to_vec();
        }
        let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
        inner
            .filter_map(|inner| self.examples_below(inner, &join(path, inner.get_name())).first().copied())
            .collect()
    }

    /// Returns the name of a command's page.
    fn page_name(&self, path: &str) -> String {
        let words = path.split(' ').filter(|word| !word.is_empty());
        words.fold(self.program.to_owned(), |name, word| format!("{name}-{word}"))
    }

    fn render(&self, command: &Command, path: &str) -> std::io::Result<Vec<u8>> {
        let page = Man::new(command.clone()).manual("Nacre");
        let mut text = Vec::new();
        page.render_title(&mut text)?;
        page.render_name_section(&mut text)?;
        page.render_synopsis_section(&mut text)?;
        page.render_description_section(&mut text)?;
        page.render_options_section(&mut text)?;
        if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
            page.render_subcommands_section(&mut text)?;
        }
        let said = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
        let (codes, said): (Vec<&str>, Vec<&str>) =
            said.iter().flat_map(|said| said.split("\n\n")).partition(|part| part.starts_with(EXIT_CODES));
        if !said.is_empty() {
            Man::new(command.clone().after_long_help(said.join("\n\n"))).render_extra_section(&mut text)?;
        }
        let mut rest = Roff::new();
        match codes.first() {
            // The help of the command says it in one sentence.
            Some(codes) => {
                let codes = codes[EXIT_CODES.len()..].trim();
                rest.control("SH", ["EXIT STATUS"]).text([roman(capitalised(codes))]);
            }
            None => list(&mut rest, "EXIT STATUS", self.exit_status),
        }
        list(&mut rest, "ENVIRONMENT", self.environment);
        list(&mut rest, "EXAMPLES", &self.examples_below(command, path));
        let pages: Vec<String> =
            self.pages_beside(command, path).iter().map(|name| format!("{name}(1)")).collect();
        if !pages.is_empty() {
            rest.control("SH", ["SEE ALSO"]);
            rest.text([roman(pages.join(", "))]);
        }
        rest.to_writer(&mut text)?;
        Ok(text)
    }

    /// Returns the names of the pages to read beside that of a command: those of the commands that it is in, of the commands
    /// in it, and others that have to do with it.
    fn pages_beside(&self, command: &Command, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut above = Some(path).filter(|path| !path.is_empty());
        while let Some(path) = above {
            let parent = path.rsplit_once(' ').map_or("", |(parent, _)| parent);
            names.insert(0, self.page_name(parent));
            above = Some(parent).filter(|parent| !parent.is_empty());
        }
        // The page of the program lists all commands already.
        if !path.is_empty() {
            let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
            names.extend(inner.map(|inner| self.page_name(&join(path, inner.get_name()))));
        }
        let related = self.related.iter().find(|(name, _)| *name == path);
        names.extend(related.into_iter().flat_map(|(_, names)| names.iter().map(|name| (*name).to_owned())));
        names
    }
}

/// Returns the path of a command in another one.
fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path} {name}") }
}

/// The beginning of the paragraph of a command's help that names its exit codes, where they are others than usual.
const EXIT_CODES: &str = "Exit codes:";

fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect()
}

fn list(roff: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    if entries.is_empty() {
        return;
    }
    roff.control("SH", [title]);
    for (name, meaning) in entries {
        roff.control("TP", []).text([bold(*name)]).text([roman(*meaning)]);
    }
}

/// Hides the commands `help`: what they print is in the other pages.
fn without_help(command: Command) -> Command {
    command.mut_subcommands(|inner| match inner.get_name() {
        "help" => inner.hide(true),
        _ => without_help(inner),
    })
}

/// Checks of a program's manual, for its tests.
pub mod check {
    use clap::Command;

    use super::{Manual, join};

    /// Calls `look` with every command that is shown, and its path.
    fn each(command: &Command, path: &str, look: &mut impl FnMut(&Command, &str)) {
        look(command, path);
        let shown = |inner: &&Command| !inner.is_hide_set() && inner.get_name() != "help";
        for inner in command.get_subcommands().filter(shown) {
            each(inner, &join(path, inner.get_name()), look);
        }
    }

    /// Returns the words of the call of the program in a line of a shell.
    fn words(program: &str, line: &str) -> Vec<String> {
        let call = &line[line.find(program).expect("an example calls the program")..];
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for c in call.chars() {
            match c {
                '\'' => quoted = !quoted,
                '|' | '<' | '>' if !quoted => break,
                ' ' if !quoted => {
                    words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                }
                c => word.push(c),
            }
        }
        words.extend(Some(word).filter(|word| !word.is_empty()));
        words
    }

    /// Checks that every command that does something has an example, that examples are command lines of their commands, that
    /// pages refer to pages that exist, and that each has every section once. In examples the words of `placeholders` stand for
    /// what follows them there.
    ///
    /// # Panics
    /// If something of this does not hold.
    pub fn manual(manual: &Manual, mut command: Command, placeholders: &[(&str, &str)]) {
        let line = command.clone();
        command.build();
        let mut paths = Vec::new();
        each(&command, "", &mut |command, path| {
            let takes_others = command.get_subcommands().any(|inner| inner.get_name() != "help");
            let examples = manual.examples_of(path);
            assert!(takes_others || !examples.is_empty(), "{} {path} has no example", manual.program);
            let text = manual.render(command, path).expect("memory takes all that is written");
            let text = String::from_utf8(text).expect("a page is UTF-8");
            let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            for section in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "\"EXIT STATUS\"",
                "ENVIRONMENT",
                "EXAMPLES",
                "\"SEE ALSO\"",
            ] {
                let times = sections.iter().filter(|other| **other == section).count();
                assert_eq!(times, 1, "{path}: {section} in {sections:?}");
            }
            assert!(
                !text.contains("Exit codes:"),
                "{path}: its exit codes are in the wrong section:\n{text}"
            );
            paths.push(path.to_owned());
        });
        for (path, examples) in manual.examples {
            assert!(paths.iter().any(|known| known == path), "there is no command \"{path}\"");
            for (example, _) in *examples {
                let replaced = placeholders
                    .iter()
                    .fold((*example).to_owned(), |line, (word, value)| line.replace(word, value));
                let words = words(manual.program, &replaced);
                let error = line.clone().try_get_matches_from(&words).err().map(|error| error.to_string());
                assert_eq!(error, None, "{example}");
                assert!(words.join(" ").contains(*path), "{example} is not an example of {path}");
            }
        }
        let pages: Vec<String> = paths.iter().map(|path| manual.page_name(path)).collect();
        for (path, names) in manual.related {
            assert!(paths.iter().any(|known| known == path), "there is no command \"{path}\"");
            for name in *names {
                assert!(pages.iter().any(|page| page == name), "there is no page {name}");
            }
        }
    }
}
