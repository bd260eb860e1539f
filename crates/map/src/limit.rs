//! Every limit of a map, in one place.

/// The maximum length of a map's name, in bytes.
pub const MAP_NAME_BYTES_MAX: usize = 128;
/// The maximum length of an entry's name, in bytes. The shortest is one byte.
pub const ENTRY_NAME_BYTES_MAX: usize = 512;
/// The maximum length of an entry's value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The maximum length of a proposer's name for itself, in bytes.
pub const AUTHOR_BYTES_MAX: usize = 255;
/// The maximum number of changes in one update, those that validators add included.
pub const CHANGES_MAX: usize = 1000;
/// The maximum number of conditions of one update.
pub const CONDITIONS_MAX: usize = 1000;
/// The maximum length of one epoch's record, in bytes: new values and the values that they replace, with their names.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// The maximum number of updates that are gathered into one epoch.
pub const UPDATES_PER_EPOCH_MAX: usize = 1000;
/// The number of entries that a map may have unless its limits say otherwise.
pub const ENTRIES_DEFAULT: u64 = 16_384;
/// The greatest number of entries that a map's limits may allow.
pub const ENTRIES_MAX: u64 = 200_000;
/// The bytes of names and values that a map may have unless its limits say otherwise.
pub const BYTES_DEFAULT: u64 = 16 << 20;
/// The greatest number of bytes that a map's limits may allow.
pub const BYTES_MAX: u64 = 64 << 20;
/// The number of epochs whose records are kept unless the map's limits say otherwise.
pub const HISTORY_DEFAULT: u64 = 1000;
/// The greatest number of epochs that a map's limits may keep.
pub const HISTORY_MAX: u64 = 1_000_000;
/// The number of records that one epoch removes at most, where more than the bound are kept.
pub const TRIM_MAX: u64 = 32;
/// The maximum number of validators of a map.
pub const VALIDATORS_MAX: usize = 64;
/// The maximum length of a validator's text, in bytes.
pub const VALIDATOR_BYTES_MAX: usize = 48 << 10;
/// The number of instructions that all validators together may take over one update.
pub const VALIDATION_INSTRUCTIONS_MAX: u64 = 100_000_000;
/// The depth to which changes that validators add are validated themselves.
pub const VALIDATION_DEPTH_MAX: usize = 4;
