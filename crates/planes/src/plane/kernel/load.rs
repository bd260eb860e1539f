//! Loading of programs and their arrays into the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{HashMap, Map, MapData, PerCpuArray};
use aya::programs::ProgramError;
use aya::{Ebpf, EbpfLoader};
use nacre_reflect::rate::IDLE_MAX;

use super::layout::{
    COUNTERS, FLIGHT_WORDS, GROUP_WORDS, LANE_WORDS, LocalKey, PLACE_WORDS, SenderKey, SenderValue,
    TOTALS_WORDS,
};
use super::mapped::Mapped;

/// The sizes of the program's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The greatest number of groups.
    pub groups: u32,
    /// The greatest number of members, in all groups together.
    pub members: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { groups: 16_384, members: 131_072 }
    }
}

/// The arrays and hashes that are shared with the programs.
#[derive(derive_more::Debug)]
#[debug("Maps")]
pub struct Maps {
    pub(super) places: Mapped,
    pub(super) lanes: Mapped,
    pub(super) groups: Mapped,
    pub(super) flights: Mapped,
    pub(super) totals: Mapped,
    pub(super) buckets: Mapped,
    pub(super) senders: HashMap<MapData, SenderKey, SenderValue>,
    pub(super) locals: HashMap<MapData, LocalKey, u32>,
    pub(super) counts: PerCpuArray<MapData, [u64; COUNTERS]>,
    /// The array maps. The mappings keep them alive, but aya closes maps that it takes for unused.
    _arrays: Vec<MapData>,
}

/// Loads an object file of `nacre-reflect-bpf`: its maps, made as large as asked for. Its programs are loaded by the
/// caller, which knows their types. `flights` is the number of entries for steps of user space that have to end before
/// anything is used again, and `others` are the sizes of other maps of the file.
///
/// # Errors
/// A sentence on the cause.
pub fn load(
    object: Result<&[u8], &str>,
    sizes: Sizes,
    flights: u32,
    others: &[(&str, u32)],
) -> Result<(Ebpf, Maps), String> {
    let object = object.map_err(str::to_owned)?;
    let cpus = aya::util::nr_cpus().map_err(|(name, error)| format!("cannot read {name}: {error}"))? as u32;
    // A lane's row has up to a quarter more places than it needs, and gaps; some are about to be used again.
    let places = sizes.members.saturating_add(sizes.members / 2).max(8192);
    let lanes = sizes.groups.saturating_mul(2).max(64);
    let flights = cpus + flights;
    let buckets = sizes.members.max(1).saturating_add(IDLE_MAX as u32);
    let mut loader = EbpfLoader::new();
    for &(name, entries) in others {
        loader.map_max_entries(name, entries);
    }
    let mut programs = loader
        .map_max_entries("places", places)
        .map_max_entries("lanes", lanes)
        .map_max_entries("groups", sizes.groups.max(1))
        .map_max_entries("senders", sizes.members.max(1))
        .map_max_entries("flights", flights)
        .map_max_entries("buckets", buckets)
        .load(object)
        .map_err(|error| format!("{}{}", chain(&error), advice(&chain(&error))))?;
    let mut arrays = Vec::new();
    let mut array = |name: &str, entries: u32, words: usize| -> Result<Mapped, String> {
        match programs.take_map(name) {
            Some(Map::Array(map)) => {
                let mapped = Mapped::new(fd(&map), entries, words);
                arrays.push(map);
                mapped.map_err(|error| format!("cannot map the array '{name}': {error}"))
            }
            _ => Err(format!("the program has no array '{name}'")),
        }
    };
    let (places, lanes) = (array("places", places, PLACE_WORDS)?, array("lanes", lanes, LANE_WORDS)?);
    let groups = array("groups", sizes.groups.max(1), GROUP_WORDS)?;
    let flights = array("flights", flights, FLIGHT_WORDS)?;
    let totals = array("totals", 1, TOTALS_WORDS)?;
    let buckets = array("buckets", buckets, 1)?;
    let mut other =
        |name: &str| programs.take_map(name).ok_or_else(|| format!("the program has no map '{name}'"));
    let wrong = |error: aya::maps::MapError| chain(&error);
    let senders = HashMap::try_from(other("senders")?).map_err(wrong)?;
    let locals = HashMap::try_from(other("locals")?).map_err(wrong)?;
    let counts = PerCpuArray::try_from(other("counts")?).map_err(wrong)?;
    let maps =
        Maps { places, lanes, groups, flights, totals, buckets, senders, locals, counts, _arrays: arrays };
    Ok((programs, maps))
}

/// The greatest number of times that a program is loaded.
const AGAIN: usize = 8;

fn fd(map: &MapData) -> BorrowedFd<'_> {
    map.fd().as_fd()
}

/// Loads a program. The kernel stops checking one when a signal comes for this process, and has to be asked again.
pub fn again(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    for _ in 0..AGAIN {
        match load() {
            Err(ProgramError::LoadError { io_error, .. }) if io_error.kind() == io::ErrorKind::WouldBlock => {
            }
            done => return done,
        }
    }
    load()
}

/// Formats an error with its causes, in one line. The log of the kernel's verifier may be very long; its end tells the
/// cause.
pub fn chain(error: &dyn std::error::Error) -> String {
    const END: usize = 400;
    let mut text = error.to_string();
    if let Some((summary, log)) = text.split_once("Verifier output:") {
        let end: Vec<char> = log.trim().chars().rev().take(END).collect();
        text =
            format!("{summary}The end of what the checker wrote: {}", end.iter().rev().collect::<String>());
    }
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Returns advice on an error of the kernel, or an empty string.
pub fn advice(text: &str) -> &'static str {
    if text.contains("os error 1)") || text.contains("os error 13)") {
        "; it needs root, or the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    } else {
        ""
    }
}
