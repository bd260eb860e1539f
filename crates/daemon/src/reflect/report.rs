//! The report of a reflector: totals, groups, members.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nacre_reflect::table::GroupId;
use serde::Serialize;

/// The detail of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The reflector's totals.
    Totals,
    /// The totals, and all groups.
    Groups,
    /// The totals, and one group.
    Group {
        /// The group.
        id: GroupId,
        /// True to include its members.
        members: bool,
    },
}

/// A report of a reflector.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The reflector as a whole.
    pub reflector: About,
    /// The groups that were asked for.
    pub groups: Vec<GroupReport>,
}

/// Counts of refused datagrams, by reason.
pub type Refused = BTreeMap<&'static str, u64>;

/// The reflector as a whole.
#[derive(Clone, Debug, Default, Serialize)]
pub struct About {
    /// The id of the process.
    pub pid: u32,
    /// The addresses that it listens on.
    pub addresses: Vec<SocketAddr>,
    /// The name of the plane.
    pub plane: String,
    /// The reason for the choice of the plane.
    pub plane_reason: String,
    /// The time since the start, in seconds.
    pub up_seconds: u64,
    /// The number of groups.
    pub groups: u64,
    /// The number of members of all groups.
    pub members: u64,
    /// Datagrams admitted.
    pub admitted: u64,
    /// Bytes of payload in the admitted datagrams.
    pub admitted_bytes: u64,
    /// Copies that devices took.
    pub copies: u64,
    /// Copies that can never be sent.
    pub undeliverable: u64,
    /// Copies that were given up, because their devices had no room within the age limit of the group.
    pub too_old: u64,
    /// The copies, by who made them: `driver`, `hook`, `frames`, `sockets`.
    pub made: BTreeMap<&'static str, u64>,
    /// Datagrams that were not admitted.
    pub refused: Refused,
    /// Other counters of the data plane, by name.
    pub plane_counters: BTreeMap<&'static str, u64>,
    /// Counters of the control plane, by name.
    pub control: BTreeMap<&'static str, u64>,
}

/// A group.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GroupReport {
    /// Its name.
    pub group: String,
    /// The number of its members.
    pub members: u32,
    /// The greatest number of members.
    pub members_max: u32,
    /// True if members need a token.
    pub token: bool,
    /// True if datagrams are numbered.
    pub sequence: bool,
    /// Datagrams admitted.
    pub admitted: u64,
    /// Bytes of payload in the admitted datagrams.
    pub admitted_bytes: u64,
    /// Copies that devices took.
    pub copies: u64,
    /// Copies that can never be sent.
    pub undeliverable: u64,
    /// Copies that were given up, because their devices had no room within the age limit of the group.
    pub too_old: u64,
    /// Datagrams that were not admitted.
    pub refused: Refused,
    /// Datagrams admitted a second, as last measured.
    pub datagrams_per_second: u64,
    /// Copies a second, as last measured.
    pub copies_per_second: u64,
    /// The median of the members' round-trip delays in microseconds, where known.
    pub delay_us: Option<u32>,
    /// The version of its state, if it has one.
    pub state_version: Option<u64>,
    /// Its members, if they were asked for.
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
    /// The time since it was last heard of, in milliseconds.
    pub heard_ms_ago: u64,
    /// The round-trip delay in microseconds; 0 if not yet known.
    pub delay_us: u32,
    /// True if it gets copies of its own datagrams.
    pub echo: bool,
}
