//! `nacre browse`: the sizes of the directories of a sweep, on a terminal.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue, terminal};
use nacre_index::Index;
use nacre_index::contents::{Contents, Entry, Order, ROOTS};
use nacre_quantity::Escaped;
use nacre_shell::flag::{self, Flag};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::failure::Failure;
use crate::quantity;
use crate::session::Context;

/// Look through the sizes of directories in an index of a sweep, on a terminal
///
/// The index is written by "nacre walk ROOT --index FILE.sqlite". Each line has the bytes of everything below an entry, its share
/// of the directory's bytes, and its name. Every name of a file with several names is counted. Nothing is changed.
///
/// Keys: up, down, page up, page down, home and end (or k, j, g, G) move; enter or right (l) opens a directory, left (h) or
/// backspace leaves it; s sorts by size, n by name; a changes between bytes on the device and apparent bytes; q ends.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Read an index whose sweep is not complete
    #[arg(long)]
    incomplete: bool,
}

/// The maximum number of entries of a directory that are shown.
const ENTRIES_MAX: usize = 100_000;

/// The time after which a signal is noticed.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The columns of the bar that shows an entry's share.
const BAR: usize = 10;

/// Runs `nacre browse`.
pub fn run(session: &Context, args: &Args) -> Result<(), Failure> {
    if session.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text =
            "browse needs a terminal; \"nacre query INDEX --by directory\" prints sizes of directories";
        return Err(Failure::Usage(text.into()));
    }
    let index =
        Index::open(&args.index, args.incomplete).map_err(|error| Failure::Usage(error.to_string()))?;
    let unreadable = |error: rusqlite::Error| {
        Failure::Failed(format!("cannot read \"{}\": {error}", Escaped::of(index.path())))
    };
    let mut browser = Browser::new(&index).map_err(unreadable)?;
    // A long query ends, too: a second signal would end the program without giving the terminal back.
    let query = index.connection.get_interrupt_handle();
    let ends = flag::caught(move || query.interrupt())?;
    let looked = look(&mut browser, &ends, unreadable);
    // The terminal is what it was before by now.
    match ends.is_set() {
        true => Err(Failure::Interrupted("interrupted".into())),
        false => looked,
    }
}

/// Shows the browser until the user or a signal ends it.
fn look(
    browser: &mut Browser<'_>,
    ends: &Flag,
    unreadable: impl Fn(rusqlite::Error) -> Failure,
) -> Result<(), Failure> {
    let mut screen = Screen::take().map_err(Failure::io("use the terminal"))?;
    while !ends.is_set() {
        screen.show(browser).map_err(Failure::io("write to the terminal"))?;
        // A signal ends no wait for keys.
        while !event::poll(LOOK_INTERVAL).map_err(Failure::io("read from the terminal"))? {
            if ends.is_set() {
                return Ok(());
            }
        }
        let Event::Key(key) = event::read().map_err(Failure::io("read from the terminal"))? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match browser.handle(key) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) if ends.is_set() => break,
            Err(error) => return Err(unreadable(error)),
        }
    }
    Ok(())
}

/// The terminal, in raw mode and on its other screen. Dropping it restores what was there.
struct Screen(io::Stdout);

impl Screen {
    fn take() -> io::Result<Screen> {
        terminal::enable_raw_mode()?;
        let mut screen = Screen(io::stdout());
        execute!(screen.0, EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Draws the browser.
    fn show(&mut self, browser: &mut Browser<'_>) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let lines = browser.draw(width.into(), height.into());
        queue!(self.0, cursor::MoveTo(0, 0))?;
        for (row, line) in lines.iter().enumerate() {
            queue!(self.0, cursor::MoveTo(0, row as u16), SetAttribute(Attribute::Reset))?;
            if line.marked {
                queue!(self.0, SetAttribute(Attribute::Reverse))?;
            }
            queue!(
                self.0,
                Print(&line.text),
                SetAttribute(Attribute::Reset),
                Clear(ClearType::UntilNewLine)
            )?;
        }
        queue!(self.0, Clear(ClearType::FromCursorDown))?;
        self.0.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(self.0, cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// A line of the screen.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    text: String,
    marked: bool,
}

/// A directory that is open.
struct Level {
    directory: i64,
    name: Vec<u8>,
    contents: Contents,
    /// The entry under the mark, and the first one on the screen.
    marked: usize,
    first: usize,
}

/// The state of the view of an index.
struct Browser<'a> {
    index: &'a Index,
    /// The open directories, from the roots down. There is at least one.
    levels: Vec<Level>,
    order: Order,
    apparent: bool,
    /// The entries that fit on the screen.
    page: usize,
}

impl<'a> Browser<'a> {
    fn new(index: &'a Index) -> rusqlite::Result<Browser<'a>> {
        let mut browser =
            Browser { index, levels: Vec::new(), order: Order::default(), apparent: false, page: 1 };
        browser.open(ROOTS, Vec::new())?;
        // The list of roots is worth a look only if there are several.
        if let [Entry { directory: Some(root), name, .. }] = &browser.level().contents.entries[..] {
            let (id, name) = (root.id, name.clone());
            browser.levels.clear();
            browser.open(id, name)?;
        }
        Ok(browser)
    }

    fn level(&self) -> &Level {
        self.levels.last().expect("a level is open")
    }

    fn level_mut(&mut self) -> &mut Level {
        self.levels.last_mut().expect("a level is open")
    }

    fn open(&mut self, directory: i64, name: Vec<u8>) -> rusqlite::Result<()> {
        let contents = Contents::of(self.index, directory, self.order, ENTRIES_MAX)?;
        self.levels.push(Level { directory, name, contents, marked: 0, first: 0 });
        Ok(())
    }

    /// Reads the entries of the open directory again, in another order. The mark stays on its entry.
    fn sort(&mut self, order: Order) -> rusqlite::Result<()> {
        self.order = order;
        let (index, level) = (self.index, self.level_mut());
        let name = level.contents.entries.get(level.marked).map(|entry| entry.name.clone());
        level.contents = Contents::of(index, level.directory, order, ENTRIES_MAX)?;
        let is_marked = |entry: &Entry| Some(&entry.name) == name.as_ref();
        level.marked = level.contents.entries.iter().position(is_marked).unwrap_or(0);
        Ok(())
    }

    fn by_size(&self) -> Order {
        if self.apparent { Order::Apparent } else { Order::Allocated }
    }

    /// Handles a key, and returns whether to go on.
    fn handle(&mut self, key: KeyEvent) -> rusqlite::Result<bool> {
        let page = self.page.max(1);
        let level = self.level_mut();
        let last = level.contents.entries.len().saturating_sub(1);
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            // In raw mode Ctrl-C is a key.
            return Ok(key.code != KeyCode::Char('c'));
        }
        match key.code {
            KeyCode::Char('q' | 'Q') => return Ok(false),
            KeyCode::Up | KeyCode::Char('k') => level.marked = level.marked.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => level.marked = (level.marked + 1).min(last),
            KeyCode::PageUp => level.marked = level.marked.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => level.marked = (level.marked + page).min(last),
            KeyCode::Home | KeyCode::Char('g') => level.marked = 0,
            KeyCode::End | KeyCode::Char('G') => level.marked = last,
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => {
                let entry = level.contents.entries.get(level.marked);
                if let Some(Entry { directory: Some(directory), name, .. }) = entry {
                    let (id, name) = (directory.id, name.clone());
                    self.open(id, name)?;
                }
            }
            KeyCode::Left | KeyCode::Backspace | KeyCode::Char('h') if self.levels.len() > 1 => {
                self.levels.pop();
                // It may have been sorted otherwise when it was left.
                self.sort(self.order)?;
            }
            KeyCode::Char('s') => self.sort(self.by_size())?,
            KeyCode::Char('n') => self.sort(Order::Name)?,
            KeyCode::Char('a') => {
                self.apparent = !self.apparent;
                let order = if self.order == Order::Name { Order::Name } else { self.by_size() };
                self.sort(order)?;
            }
            _ => {}
        }
        Ok(true)
    }

    /// Returns the lines of a screen of this size: the path, the totals, the entries, and the keys.
    fn draw(&mut self, width: usize, height: usize) -> Vec<Line> {
        self.page = height.saturating_sub(3).max(1);
        let (page, apparent) = (self.page, self.apparent);
        let path = self.path();
        let level = self.level_mut();
        // The mark stays on the screen.
        level.first = level.first.clamp(level.marked.saturating_sub(page - 1), level.marked);
        let contents = &level.contents;
        let total = if apparent { contents.apparent } else { contents.allocated };
        let more = match contents.count.saturating_sub(contents.entries.len() as u64) {
            0 => String::new(),
            more => format!(" ({} of them not shown)", quantity::grouped(more)),
        };
        let totals = format!(
            "{} {}, {}{more}",
            quantity::size(total),
            if apparent { "apparent" } else { "on the device" },
            nacre_quantity::count(contents.count, "entry", "entries"),
        );
        let plain = |text: String| Line { text, marked: false };
        let mut lines = vec![plain(fit_end(&path, width)), plain(fit(&totals, width))];
        let shown = contents.entries.iter().enumerate().skip(level.first).take(page);
        lines.extend(shown.map(|(number, entry)| {
            let bytes = if apparent { entry.apparent } else { entry.allocated };
            Line { text: fit(&entry_line(entry, bytes, total), width), marked: number == level.marked }
        }));
        if contents.entries.is_empty() {
            lines.push(plain(fit("  (empty)", width)));
        }
        lines.resize_with((page + 2).max(lines.len()), || plain(String::new()));
        let other = if apparent { "on the device" } else { "apparent" };
        let keys = format!("enter open  left back  s size  n name  a {other}  q quit");
        lines.push(plain(fit(&keys, width)));
        lines.truncate(height.max(1));
        lines
    }

    /// Returns the path of the open directory, as it is shown.
    fn path(&self) -> String {
        let mut path = Vec::new();
        for level in &self.levels {
            if !path.is_empty() && path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(&level.name);
        }
        match path.is_empty() {
            true => "roots of the sweep".to_owned(),
            false => Escaped(&path).to_string(),
        }
    }
}

/// Returns the line of an entry: its bytes, its share of `total` as a bar and in per cent, and its name.
fn entry_line(entry: &Entry, bytes: u64, total: u64) -> String {
    let share = if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    let filled = ((share * BAR as f64).round() as usize).min(BAR);
    let bar = format!("{}{}", "#".repeat(filled), " ".repeat(BAR - filled));
    let slash = if entry.kind == "d" && !entry.name.ends_with(b"/") { "/" } else { "" };
    let remark = match (&entry.directory, entry.kind.as_str()) {
        (Some(directory), _) if directory.complete => {
            format!("  {}", nacre_quantity::count(directory.entries, "entry", "entries"))
        }
        (Some(_), _) => "  not all of it could be read".to_owned(),
        (None, "d") => "  not entered".to_owned(),
        _ => String::new(),
    };
    let size = quantity::size(bytes);
    let percent = share * 100.0;
    format!("{size:>10} [{bar}] {percent:5.1} %  {}{slash}{remark}", Escaped(&entry.name))
}

/// Returns the beginning of a text that fits into so many columns.
fn fit(text: &str, width: usize) -> String {
    let mut left = width;
    let fits = |letter: &char| match letter.width().unwrap_or(0) {
        wide if wide > left => false,
        wide => {
            left -= wide;
            true
        }
    };
    text.chars().take_while(fits).collect()
}

/// Returns the end of a text that fits into so many columns, marked where its beginning is missing.
fn fit_end(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |letter: &char| match letter.width().unwrap_or(0) {
        wide if wide > left => false,
        wide => {
            left -= wide;
            true
        }
    };
    let mut end: Vec<char> = text.chars().rev().take_while(fits).collect();
    if width > 0 {
        end.push('…');
    }
    end.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_columns() {
        assert_eq!(fit("größe", 3), "grö");
        assert_eq!(fit("名前", 3), "名");
        assert_eq!(fit_end("/a/b/名前", 5), "…名前");
        assert_eq!(fit_end("/a/b", 4), "/a/b");
        assert_eq!(fit_end("/a/b", 0), "");
    }

    #[test]
    fn a_line_shows_the_share_of_an_entry() {
        let mut entry = Entry {
            name: b"a\x1b[2J".to_vec(),
            kind: "f".into(),
            apparent: 512,
            allocated: 512,
            directory: None,
        };
        assert_eq!(entry_line(&entry, 512, 1024), "     512 B [#####     ]  50.0 %  a\\x1b[2J");
        entry.kind = "d".into();
        assert_eq!(entry_line(&entry, 0, 0), "       0 B [          ]   0.0 %  a\\x1b[2J/  not entered");
    }
}
