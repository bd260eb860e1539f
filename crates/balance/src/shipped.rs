//! The policies that ship.

/// A policy that ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// The name.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// The text, in Lua.
    pub text: &'static str,
}

/// All policies that ship.
pub const SHIPPED: [Shipped; 7] = [
    Shipped {
        name: "greedy-spill",
        about: "sends half of a rank's load to the next rank if that is idle",
        text: include_str!("../../../policies/greedy-spill.lua"),
    },
    Shipped {
        name: "greedy-spill-even",
        about: "sends half of a rank's load half way to the next rank that has any, so that load spreads evenly",
        text: include_str!("../../../policies/greedy-spill-even.lua"),
    },
    Shipped {
        name: "fill-and-spill",
        about: "fills a rank, and sends a quarter of its load on once it has been busy for three ticks",
        text: include_str!("../../../policies/fill-and-spill.lua"),
    },
    Shipped {
        name: "adaptable",
        about: "sends what a rank has above the mean to those below it",
        text: include_str!("../../../policies/adaptable.lua"),
    },
    Shipped {
        name: "hash",
        about: "spreads resources by the hash of their names, whatever their load",
        text: include_str!("../../../policies/hash.lua"),
    },
    Shipped {
        name: "sequencer",
        about: "sends half of a rank's sequencers and subtrees to the next rank at once",
        text: include_str!("../../../policies/sequencer.lua"),
    },
    Shipped {
        name: "conservative",
        about: "the same as sequencer, once there has been a reason for two minutes",
        text: include_str!("../../../policies/conservative.lua"),
    },
];

/// Returns the policy of a name that ships.
pub fn shipped(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|shipped| shipped.name == name)
}
