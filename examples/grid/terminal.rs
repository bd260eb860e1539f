//! A player at a terminal, which draws the world and reads keys.

use std::io::{IsTerminal, Read, Write};
use std::sync::mpsc::{self, TryRecvError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::Arguments;
use crate::play::Player;
use crate::world::{CELL_HEIGHT, CELL_WIDTH, FLAGS_MAX, HEIGHT, WIDTH, cell_of};

/// Restores the terminal's settings when dropped.
struct Restore(Termios);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
        print!("\x1b[?25h\x1b[0m\r\n");
        let _ = std::io::stdout().flush();
    }
}

/// Plays until q is pressed.
pub fn play(arguments: &Arguments) -> Result<(), String> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err("there is no terminal to play in; --bot plays without one".to_owned());
    }
    let before = tcgetattr(std::io::stdin()).map_err(|error| format!("cannot ask the terminal: {error}"))?;
    let mut player = Player::enter(arguments)?;
    let mut raw = before.clone();
    raw.make_raw();
    let _restore = Restore(before);
    tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)
        .map_err(|error| format!("cannot have keys one by one: {error}"))?;
    print!("\x1b[2J\x1b[?25l");
    let (keys, pressed) = mpsc::channel();
    std::thread::spawn(move || {
        for byte in std::io::stdin().lock().bytes().map_while(Result::ok) {
            if keys.send(byte).is_err() {
                break;
            }
        }
    });
    let mut escape = Vec::new();
    loop {
        draw(&player).map_err(|error| format!("cannot draw: {error}"))?;
        player.hear(arguments.turn())?;
        let key = match pressed.try_recv() {
            Ok(key) => key,
            Err(TryRecvError::Empty) => continue,
            Err(TryRecvError::Disconnected) => return player.leave(),
        };
        // An arrow is three bytes: escape, a bracket, a letter.
        if key == 0x1b || !escape.is_empty() {
            escape.push(key);
            if escape.len() < 3 {
                continue;
            }
        }
        match (std::mem::take(&mut escape).get(2), key) {
            (Some(b'A'), _) | (None, b'w') => player.step((0, -1))?,
            (Some(b'B'), _) | (None, b's') => player.step((0, 1))?,
            (Some(b'C'), _) | (None, b'd') => player.step((1, 0))?,
            (Some(b'D'), _) | (None, b'a') => player.step((-1, 0))?,
            (None, b' ') => player.plant()?,
            (None, b'q' | 3 | 4) => return player.leave(),
            _ => {}
        }
    }
}

fn draw(player: &Player) -> std::io::Result<()> {
    let mut text = String::from("\x1b[H");
    for y in 0..HEIGHT {
        if y > 0 && y % CELL_HEIGHT == 0 {
            let part = "-".repeat(CELL_WIDTH.into());
            text += &format!("\x1b[2m{part}+{part}+{part}\x1b[0m\r\n");
        }
        for x in 0..WIDTH {
            if x > 0 && x % CELL_WIDTH == 0 {
                text += "\x1b[2m|\x1b[0m";
            }
            let here = cell_of((x, y)) == cell_of(player.at);
            let cell = player.cells.get(&cell_of((x, y)));
            let owner = cell.and_then(|cell| {
                cell.records.values().find(|record| record.at == Some((x, y))).map(|record| record.player)
            });
            let flag = cell.and_then(|cell| cell.flag((x, y)));
            text += &match (player.at == (x, y), owner, flag) {
                (true, _, _) => "\x1b[1;32m@\x1b[0m".to_owned(),
                // Those of other cells were there when this player left.
                (_, Some(owner), _) if here => format!("\x1b[1;3{}m{}\x1b[0m", 1 + owner % 6, owner % 10),
                (_, _, Some(owner)) => {
                    format!("\x1b[{};3{}mF\x1b[0m", if here { 1 } else { 2 }, 1 + owner % 6)
                }
                _ if here => ".".to_owned(),
                _ => "\x1b[2m.\x1b[0m".to_owned(),
            };
        }
        text += "\r\n";
    }
    let statistics = &player.statistics;
    text += &format!(
        "\r\n{}/{FLAGS_MAX} flags, {} cells entered, {} datagrams heard, rejoined {} times\x1b[K\r\n\
         arrows or wasd move, space plants a flag, q ends\x1b[K",
        player.flags.len(),
        statistics.entered,
        statistics.heard,
        statistics.rejoined
    );
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
