//! The bounds of a call.

use std::time::Duration;

use nacre_object::limit::TRANSACTION_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// The bounds of one call, nested calls included. A call that exceeds one of them changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The maximum number of instructions of the Lua machine. Library functions are charged by the work that they do.
    pub instructions: u64,
    /// The maximum number of bytes that the call allocates and does not give back while it runs. Garbage is only
    /// collected between calls, so it counts.
    pub memory_bytes: u64,
    /// The maximum number of bytes of output.
    pub output_bytes: u64,
    /// The maximum time that the script itself runs, in one attempt. Waiting for the store does not count.
    pub wall: Duration,
    /// The maximum number of reads of the object, those of all attempts at one version together.
    pub reads: u32,
}

impl Bounds {
    /// The greatest bounds that a class can be given.
    pub const MAX: Bounds = Bounds {
        instructions: 1_000_000_000,
        memory_bytes: 1 << 30,
        output_bytes: TRANSACTION_BYTES_MAX as u64,
        wall: Duration::from_secs(60),
        reads: 4096,
    };

    /// Returns these bounds, none of them above [`Bounds::MAX`].
    pub fn clamped(self) -> Self {
        self.within(Self::MAX)
    }

    /// Returns these bounds, none of them above those given.
    pub fn within(self, max: Bounds) -> Self {
        Self {
            instructions: self.instructions.min(max.instructions),
            memory_bytes: self.memory_bytes.min(max.memory_bytes),
            output_bytes: self.output_bytes.min(max.output_bytes),
            wall: self.wall.min(max.wall),
            reads: self.reads.min(max.reads),
        }
    }
}

impl Default for Bounds {
    /// Returns 10 million instructions, 32 MiB of memory, 4 MiB of output, one second and 1,024 reads.
    fn default() -> Self {
        Self {
            instructions: 10_000_000,
            memory_bytes: 32 << 20,
            output_bytes: 4 << 20,
            wall: Duration::from_secs(1),
            reads: 1024,
        }
    }
}

/// A bound that a call exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// [`Bounds::instructions`].
    Instructions,
    /// [`Bounds::memory_bytes`].
    Memory,
    /// [`Bounds::output_bytes`].
    Output,
    /// [`Bounds::wall`].
    Wall,
    /// [`Bounds::reads`].
    Reads,
}

impl Bound {
    /// Returns a sentence on what was exceeded.
    pub fn sentence(self, bounds: &Bounds) -> String {
        match self {
            Bound::Instructions => format!("it ran for more than {} instructions", bounds.instructions),
            Bound::Memory => format!("it used more than {} bytes of memory", bounds.memory_bytes),
            Bound::Output => format!("its output is longer than {} bytes", bounds.output_bytes),
            Bound::Wall => format!("it ran for more than {:?}", bounds.wall),
            Bound::Reads => format!("it read the object more than {} times", bounds.reads),
        }
    }
}
