//! Maps of devices, which the kernel broadcasts through, and the map that finds them. All unsafe code of the plane is
//! here: four commands of the system call `bpf` that its library lacks.
//!
//! Maps are made for size classes: exact up to 128 places, then in steps of a sixteenth (`class_of` in `bpf/xdp.c`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nacre_reflect_bpf::constant;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_UPDATE_BATCH: libc::c_long = 26;
const BPF_MAP_TYPE_DEVMAP: u32 = 14;

/// The number of classes of one device.
const CLASSES: u32 = constant::XDP_CLASSES as u32;

/// Returns the number of entries in the maps of a class: `class_places` in `bpf/xdp.c`.
pub(super) fn class_places(class: u32) -> u32 {
    match class {
        0..128 => class + 1,
        128..144 => 128 + 8 * (class - 127),
        _ => 256 + 16 * (class - 143),
    }
}

#[repr(C)]
struct Create {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct Update {
    map: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct UpdateBatch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    entry_flags: u64,
    flags: u64,
}

/// The value of an entry: the device, and the program that sees the frames sent there.
#[repr(C)]
struct Target {
    device: u32,
    program: i32,
}

/// # Safety
/// `attributes` must have the layout that the command expects, and so must everything that it points to.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the caller's promise; the length is that of the words.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn device_map(entries: u32) -> io::Result<OwnedFd> {
    let mut create = Create {
        kind: BPF_MAP_TYPE_DEVMAP,
        key_bytes: 4,
        value_bytes: size_of::<Target>() as u32,
        entries,
        flags: 0,
    };
    // SAFETY: these are the first words of what the command wants; what is not given is zero.
    let created = unsafe { bpf(BPF_MAP_CREATE, &mut create) }?;
    // SAFETY: the kernel has just made this descriptor, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(created as libc::c_int) })
}

fn set(map: BorrowedFd<'_>, key: u32, target: &Target) -> io::Result<()> {
    let mut update = Update {
        map: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_ref(target) as u64,
        flags: 0,
    };
    // SAFETY: key and value have the lengths that the map was made with, and live.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
}

/// Puts maps into a map of maps, all at once.
fn set_all(map: BorrowedFd<'_>, keys: &[u32], maps: &[OwnedFd]) -> io::Result<()> {
    let values: Vec<i32> = maps.iter().map(|map| map.as_raw_fd()).collect();
    debug_assert_eq!(keys.len(), values.len());
    let mut update = UpdateBatch {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: keys.len() as u32,
        map: map.as_raw_fd() as u32,
        entry_flags: 0,
        flags: 0,
    };
    // SAFETY: there are as many keys and values as is said, of 4 bytes each, as in every map of maps, and they live.
    unsafe { bpf(BPF_MAP_UPDATE_BATCH, &mut update) }.map(drop)
}

/// Makes the maps of a device, for the slot that programs know it by.
pub(super) fn fill(fans: BorrowedFd<'_>, slot: u32, device: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut maps = Vec::with_capacity(CLASSES as usize);
    for class in 0..CLASSES {
        let map = device_map(class_places(class))?;
        for entry in 0..class_places(class) {
            set(map.as_fd(), entry, &Target { device, program: program.as_raw_fd() })?;
        }
        maps.push(map);
    }
    let keys: Vec<u32> = (slot * CLASSES..(slot + 1) * CLASSES).collect();
    set_all(fans, &keys, &maps)
}

/// Waits until every program that runs now has ended, with all that the kernel does for it before it takes the next
/// packets. A change of a map of maps waits like this; so the entry that no program looks at is changed.
pub(super) fn wait_for_programs(fans: BorrowedFd<'_>, spare: &OwnedFd) -> io::Result<()> {
    let key = constant::XDP_DEVICES as u32 * CLASSES;
    set_all(fans, &[key], std::slice::from_ref(spare))
}

/// Returns a map to be put where no program looks.
pub(super) fn spare() -> io::Result<OwnedFd> {
    device_map(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the class for a number of places: `class_of` of `bpf/xdp.c`.
    fn class_of(places: u32) -> u32 {
        match places {
            ..=128 => places - 1,
            129..=256 => 128 + (places - 129) / 8,
            _ => 144 + (places - 257) / 16,
        }
    }

    #[test]
    fn each_number_of_places_has_the_smallest_class_that_holds_it() {
        for places in 1..=constant::XDP_PLACES_MAX as u32 {
            let class = class_of(places);
            assert!(class < CLASSES && class_places(class) >= places, "{places}");
            assert!(class == 0 || class_places(class - 1) < places, "{places}");
        }
    }
}
