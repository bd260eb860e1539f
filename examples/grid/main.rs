//! A small game on a grid of cells, each of which is a group of a reflector: players move, join the next cell's group
//! before they leave the previous one, and plant flags. A player who enters a cell gets its state from the reflector,
//! which requested it from another player.
//!
//! ```text
//! nacre reflect serve --state-every 1s
//! cargo run --example grid -- --player 1          # in a terminal: arrow keys or wasd, space plants a flag, q ends
//! cargo run --example grid -- --player 2          # in another one
//! ```
//!
//! Cells are groups 1 to 9 and the place where all meet is group 10, at the given reflector; or, with `--locations
//! grid`, the locations `grid/0,0` to `grid/2,2` and `grid/plaza`, which an operator may move to other reflectors
//! during the game. With `--bot` a player needs no terminal: it plays a number of turns from a seed, meets the others,
//! and prints all flags. All players must print the same.

mod play;
mod room;
mod terminal;
mod world;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// A game on a grid of groups.
#[derive(Parser, Clone, Debug)]
pub struct Arguments {
    /// A reflector; others are its standbys
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', default_value = "127.0.0.1:7400")]
    reflector: Vec<SocketAddr>,
    /// Name under which the cells are locations, rather than groups of the reflector
    #[arg(long, value_name = "NAME")]
    locations: Option<String>,
    /// The number of this player
    #[arg(long, default_value = "1")]
    player: u32,
    /// Play by itself, without a terminal
    #[arg(long, requires = "players")]
    bot: bool,
    /// Number of bots, which have the numbers from 1 on
    #[arg(long)]
    players: Option<u32>,
    /// Number of turns after which the bots meet
    #[arg(long, default_value = "100")]
    turns: u32,
    /// Seed of a bot's choices
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Time of a turn, in milliseconds
    #[arg(long, default_value = "100")]
    turn_ms: u64,
}

impl Arguments {
    fn turn(&self) -> Duration {
        Duration::from_millis(self.turn_ms)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.bot {
        true => play::bot(&arguments),
        false => terminal::play(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("grid: {why}");
            ExitCode::FAILURE
        }
    }
}
