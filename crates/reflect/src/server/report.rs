//! What a reflector tells of itself: totals, groups, members.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use crate::table::GroupId;

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The reflector's totals.
    Totals,
    /// And all groups.
    Groups,
    /// And one group.
    Group {
        /// Which.
        id: GroupId,
        /// With its members.
        members: bool,
    },
}

/// What a reflector tells.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// All of it.
    pub reflector: About,
    /// Each group that was asked for.
    pub groups: Vec<GroupReport>,
}

/// Why datagrams were refused, each reason with a count.
pub type Refused = BTreeMap<&'static str, u64>;

/// The reflector as a whole.
#[derive(Clone, Debug, Default, Serialize)]
pub struct About {
    /// The process.
    pub pid: u32,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// How copies are made.
    pub plane: String,
    /// Why it is this plane.
    pub plane_reason: String,
    /// How long it has been up.
    pub up_seconds: u64,
    /// Groups that exist.
    pub groups: u64,
    /// Members of all groups.
    pub members: u64,
    /// Datagrams admitted.
    pub admitted: u64,
    /// Bytes of payload in them.
    pub admitted_bytes: u64,
    /// Copies that devices took.
    pub copies: u64,
    /// Copies that can never be sent.
    pub undeliverable: u64,
    /// Datagrams that were not admitted.
    pub refused: Refused,
    /// What else the data plane counts.
    pub plane_counters: BTreeMap<&'static str, u64>,
    /// What the control plane counts.
    pub control: BTreeMap<&'static str, u64>,
}

/// A group.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GroupReport {
    /// Its name.
    pub group: String,
    /// How many members it has.
    pub members: u32,
    /// How many it may have.
    pub members_max: u32,
    /// Whether members need a token.
    pub token: bool,
    /// Whether datagrams are numbered.
    pub sequence: bool,
    /// Datagrams admitted.
    pub admitted: u64,
    /// Bytes of payload in them.
    pub admitted_bytes: u64,
    /// Copies that devices took.
    pub copies: u64,
    /// Copies that can never be sent.
    pub undeliverable: u64,
    /// Datagrams that were not admitted.
    pub refused: Refused,
    /// Datagrams admitted in a second, of late.
    pub datagrams_per_second: u64,
    /// Copies in a second, of late.
    pub copies_per_second: u64,
    /// The median of the members' delays there and back, where known.
    pub delay_us: Option<u32>,
    /// The version of its state, if it has one.
    pub state_version: Option<u64>,
    /// Who they are, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none", rename = "list")]
    pub list: Option<Vec<MemberReport>>,
}

/// A member.
#[derive(Clone, Debug, Serialize)]
pub struct MemberReport {
    /// Its address.
    pub address: SocketAddr,
    /// The address of the reflector that it joined at.
    pub at: SocketAddr,
    /// The network device that it is behind.
    pub device: String,
    /// When it was last heard of.
    pub heard_ms_ago: u64,
    /// The delay there and back; 0 if not yet known.
    pub delay_us: u32,
    /// Whether it gets its own datagrams.
    pub echo: bool,
}
