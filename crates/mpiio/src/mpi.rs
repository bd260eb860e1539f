//! The MPI library, as far as this crate asks it: its types taken apart, its communicators, its constants.
//!
//! One of the modules with `unsafe` code, as are those of the interposed calls and what they hand on (`interpose`, `next`, `transfer`,
//! `atomic`, `request`) and `signals`. Every function that is
//! called here by its profiling name is one that this library does not stand in front of.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

pub use mpi_sys::{
    MPI_Comm, MPI_Count, MPI_Datatype, MPI_File, MPI_Info, MPI_Offset, MPI_Request, MPI_Status,
};

use crate::next::Next;

// SAFETY: they are defined in constant.c, with these types.
unsafe extern "C" {
    safe static nacre_mpi_combiners: [c_int; 13];
    safe static nacre_mpi_order_fortran: c_int;
    safe static nacre_mpi_distribute_none: c_int;
    safe static nacre_mpi_distribute_block: c_int;
    safe static nacre_mpi_distribute_cyclic: c_int;
    safe static nacre_mpi_distribute_default: c_int;
    safe static nacre_mpi_mode_rdonly: c_int;
    safe static nacre_mpi_mode_wronly: c_int;
    safe static nacre_mpi_seek_set: c_int;
    safe static nacre_mpi_undefined: c_int;
    safe static nacre_mpi_success: c_int;
    safe static nacre_mpi_err_io: c_int;
    safe static nacre_mpi_max_datarep_string: c_int;
    safe static nacre_mpi_max_error_string: c_int;
    safe fn nacre_mpi_byte() -> MPI_Datatype;
    safe fn nacre_mpi_datatype_null() -> MPI_Datatype;
    safe fn nacre_mpi_comm_world() -> MPI_Comm;
    safe fn nacre_mpi_comm_self() -> MPI_Comm;
    safe fn nacre_mpi_status_ignore() -> *mut MPI_Status;
}

/// The error code of an MPI call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

/// Returns the code of success.
pub fn success() -> c_int {
    nacre_mpi_success
}

/// Returns the class of errors of files and their devices.
pub fn error_class_io() -> c_int {
    nacre_mpi_err_io
}

/// Returns the error of a call, if it is one.
pub fn result(code: c_int) -> Result<(), Code> {
    if code == nacre_mpi_success { Ok(()) } else { Err(Code(code)) }
}

/// A way in which a datatype was constructed, in the order of constant.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combiner {
    /// Predefined.
    Named,
    /// `MPI_Type_dup`.
    Dup,
    /// `MPI_Type_contiguous`.
    Contiguous,
    /// `MPI_Type_vector`.
    Vector,
    /// `MPI_Type_create_hvector`.
    Hvector,
    /// `MPI_Type_indexed`.
    Indexed,
    /// `MPI_Type_create_hindexed`.
    Hindexed,
    /// `MPI_Type_create_indexed_block`.
    IndexedBlock,
    /// `MPI_Type_create_hindexed_block`.
    HindexedBlock,
    /// `MPI_Type_create_struct`.
    Struct,
    /// `MPI_Type_create_subarray`.
    Subarray,
    /// `MPI_Type_create_darray`.
    Darray,
    /// `MPI_Type_create_resized`.
    Resized,
}

impl Combiner {
    const ALL: [Combiner; 13] = [
        Combiner::Named,
        Combiner::Dup,
        Combiner::Contiguous,
        Combiner::Vector,
        Combiner::Hvector,
        Combiner::Indexed,
        Combiner::Hindexed,
        Combiner::IndexedBlock,
        Combiner::HindexedBlock,
        Combiner::Struct,
        Combiner::Subarray,
        Combiner::Darray,
        Combiner::Resized,
    ];

    fn of(number: c_int) -> Option<Combiner> {
        let known = nacre_mpi_combiners.iter().zip(Combiner::ALL);
        known.into_iter().find_map(|(constant, combiner)| (*constant == number).then_some(combiner))
    }
}

/// A distribution of `MPI_Type_create_darray`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distributed {
    /// `MPI_DISTRIBUTE_NONE`.
    None,
    /// `MPI_DISTRIBUTE_BLOCK`.
    Block,
    /// `MPI_DISTRIBUTE_CYCLIC`.
    Cyclic,
}

/// Returns the distribution that a constant stands for.
pub fn distribution(constant: c_int) -> Option<Distributed> {
    let known = [
        (nacre_mpi_distribute_none, Distributed::None),
        (nacre_mpi_distribute_block, Distributed::Block),
        (nacre_mpi_distribute_cyclic, Distributed::Cyclic),
    ];
    known.into_iter().find_map(|(known, distributed)| (known == constant).then_some(distributed))
}

/// Returns whether a constant is `MPI_DISTRIBUTE_DFLT_DARG`.
pub fn is_default_argument(constant: c_int) -> bool {
    constant == nacre_mpi_distribute_default
}

/// Returns whether a constant is `MPI_ORDER_FORTRAN`.
pub fn is_order_fortran(constant: c_int) -> bool {
    constant == nacre_mpi_order_fortran
}

/// The size and the bounds of a datatype in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The number of its bytes.
    pub size: u64,
    /// The lower bound.
    pub lower: i64,
    /// The distance from the lower to the upper bound.
    pub extent: i64,
    /// The displacement of its first byte.
    pub true_lower: i64,
    /// The distance from the first byte to the end of the last.
    pub true_extent: i64,
}

/// Returns the size and the bounds of a datatype; nothing if one of them is past what MPI can count.
pub fn numbers(datatype: MPI_Datatype) -> Result<Option<Numbers>, Code> {
    let (mut size, mut lower, mut extent, mut true_lower, mut true_extent): (
        MPI_Count,
        MPI_Count,
        MPI_Count,
        MPI_Count,
        MPI_Count,
    ) = (0, 0, 0, 0, 0);
    // SAFETY: the results are written to variables of the types that MPI declares; a handle that is none is found by MPI.
    unsafe {
        result(mpi_sys::PMPI_Type_size_x(datatype, &mut size))?;
        result(mpi_sys::PMPI_Type_get_extent_x(datatype, &mut lower, &mut extent))?;
        result(mpi_sys::PMPI_Type_get_true_extent_x(datatype, &mut true_lower, &mut true_extent))?;
    }
    // MPI_UNDEFINED, which is negative, stands for what cannot be counted.
    let Ok(size) = u64::try_from(size) else { return Ok(None) };
    Ok(Some(Numbers { size, lower, extent, true_lower, true_extent }))
}

/// A handle on a datatype that is freed when it is dropped, unless it is predefined.
#[derive(Debug)]
pub struct OwnedType(MPI_Datatype);

impl OwnedType {
    /// Returns the handle.
    pub fn handle(&self) -> MPI_Datatype {
        self.0
    }
}

impl Drop for OwnedType {
    fn drop(&mut self) {
        if matches!(envelope(self.0), Ok(Some(envelope)) if envelope.combiner != Combiner::Named) {
            // SAFETY: the handle is this value's own, and is not used again. If MPI does not free it, it stays.
            unsafe { mpi_sys::PMPI_Type_free(&mut self.0) };
        }
    }
}

struct Envelope {
    integers: c_int,
    addresses: c_int,
    types: c_int,
    combiner: Combiner,
}

/// Returns how a datatype was constructed; nothing if in a way that is not known here, or with large counts.
fn envelope(datatype: MPI_Datatype) -> Result<Option<Envelope>, Code> {
    type EnvelopeC = unsafe extern "C" fn(
        MPI_Datatype,
        *mut MPI_Count,
        *mut MPI_Count,
        *mut MPI_Count,
        *mut MPI_Count,
        *mut c_int,
    ) -> c_int;
    static ENVELOPE_C: Next = Next::new(c"PMPI_Type_get_envelope_c");
    // SAFETY: MPI 4 declares the function with this type; older libraries do not have it.
    if let Some(envelope_c) = unsafe { ENVELOPE_C.find::<EnvelopeC>() } {
        let (mut integers, mut addresses, mut large, mut types, mut combiner) = (0, 0, 0, 0, 0);
        // SAFETY: the results are written to variables of the types that MPI declares.
        let code = unsafe {
            envelope_c(datatype, &mut integers, &mut addresses, &mut large, &mut types, &mut combiner)
        };
        result(code)?;
        if large > 0 {
            return Ok(None);
        }
    }
    let (mut integers, mut addresses, mut types, mut combiner) = (0, 0, 0, 0);
    // SAFETY: the results are written to variables of the types that MPI declares.
    let code = unsafe {
        mpi_sys::PMPI_Type_get_envelope(datatype, &mut integers, &mut addresses, &mut types, &mut combiner)
    };
    result(code)?;
    let combiner = Combiner::of(combiner);
    Ok(combiner.map(|combiner| Envelope { integers, addresses, types, combiner }))
}

/// The construction of a datatype: its constructor's arguments.
#[derive(Debug)]
pub struct Contents {
    /// The constructor.
    pub combiner: Combiner,
    /// The integers among the arguments, in MPI's order.
    pub integers: Vec<c_int>,
    /// The addresses among them.
    pub addresses: Vec<i64>,
    /// The datatypes among them.
    pub types: Vec<OwnedType>,
}

/// Returns the construction of a datatype; nothing if it is not one that is known here.
pub fn contents(datatype: MPI_Datatype) -> Result<Option<Contents>, Code> {
    let Some(Envelope { integers, addresses, types, combiner }) = envelope(datatype)? else {
        return Ok(None);
    };
    if combiner == Combiner::Named {
        return Ok(Some(Contents { combiner, integers: vec![], addresses: vec![], types: vec![] }));
    }
    let count = |number: c_int| usize::try_from(number).unwrap_or(0);
    let mut given_integers = vec![0; count(integers)];
    let mut given_addresses: Vec<mpi_sys::MPI_Aint> = vec![0; count(addresses)];
    let mut given_types = vec![nacre_mpi_datatype_null(); count(types)];
    // SAFETY: the three arrays are as long as is said, and as the envelope asks for.
    let code = unsafe {
        mpi_sys::PMPI_Type_get_contents(
            datatype,
            integers,
            addresses,
            types,
            given_integers.as_mut_ptr(),
            given_addresses.as_mut_ptr(),
            given_types.as_mut_ptr(),
        )
    };
    result(code)?;
    let types = given_types.into_iter().map(OwnedType).collect();
    // Of 64 bits in both libraries, by different names.
    #[allow(clippy::unnecessary_cast)]
    let addresses = given_addresses.into_iter().map(|address| address as i64).collect();
    Ok(Some(Contents { combiner, integers: given_integers, addresses, types }))
}

/// The view of a file, as MPI tells it.
pub struct RawView {
    /// The displacement in bytes.
    pub displacement: i64,
    /// The elementary type.
    pub etype: OwnedType,
    /// The file type.
    pub filetype: OwnedType,
    /// True if bytes of the program are bytes of the file.
    pub is_native: bool,
}

/// Returns the view of a file.
pub fn view(file: MPI_File) -> Result<RawView, Code> {
    let mut displacement: MPI_Offset = 0;
    let (mut etype, mut filetype) = (nacre_mpi_datatype_null(), nacre_mpi_datatype_null());
    let length = usize::try_from(nacre_mpi_max_datarep_string).unwrap_or(0);
    let mut representation = vec![0u8; length + 1];
    // SAFETY: the name of a representation takes MPI_MAX_DATAREP_STRING bytes at most, its end included.
    let code = unsafe {
        mpi_sys::PMPI_File_get_view(
            file,
            &mut displacement,
            &mut etype,
            &mut filetype,
            representation.as_mut_ptr().cast(),
        )
    };
    result(code)?;
    let name = representation.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_native = name.eq_ignore_ascii_case(b"native");
    Ok(RawView { displacement, etype: OwnedType(etype), filetype: OwnedType(filetype), is_native })
}

/// Returns whether a handle is that of no datatype.
pub fn is_no_type(datatype: MPI_Datatype) -> bool {
    datatype == nacre_mpi_datatype_null()
}

/// Returns the individual pointer of a file, in elementary types.
pub fn position(file: MPI_File) -> Result<i64, Code> {
    let mut offset: MPI_Offset = 0;
    // SAFETY: the result is written to a variable of the type that MPI declares.
    result(unsafe { mpi_sys::PMPI_File_get_position(file, &mut offset) })?;
    Ok(offset)
}

/// Moves the individual pointer of a file, in elementary types.
pub fn seek(file: MPI_File, offset: i64) -> Result<(), Code> {
    // SAFETY: the call takes no memory of ours.
    result(unsafe { mpi_sys::PMPI_File_seek(file, offset, nacre_mpi_seek_set) })
}

/// What a file may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// It may be read.
    pub reads: bool,
    /// It may be written.
    pub writes: bool,
}

impl Mode {
    /// Returns what an access mode allows.
    pub fn of(mode: c_int) -> Mode {
        Mode { reads: mode & nacre_mpi_mode_wronly == 0, writes: mode & nacre_mpi_mode_rdonly == 0 }
    }
}

/// Packs elements in memory into bytes in a row.
///
/// # Safety
///
/// The buffer holds so many elements of the datatype.
pub unsafe fn pack(
    buffer: *const c_void,
    count: u64,
    datatype: MPI_Datatype,
    numbers: Numbers,
) -> Result<Option<Vec<u8>>, Code> {
    // The counts of MPI_Pack are of 31 bits.
    const BATCH_BYTES: u64 = 1 << 28;
    if numbers.size == 0 {
        return Ok(Some(Vec::new()));
    }
    let Ok(length) = usize::try_from(numbers.size.saturating_mul(count)) else { return Ok(None) };
    let batch = (BATCH_BYTES / numbers.size).clamp(1, i32::MAX as u64);
    let (mut packed, mut done) = (vec![0u8; length], 0u64);
    while done < count {
        let now = batch.min(count - done);
        let begin = (done * numbers.size) as usize;
        let Ok(bytes) = c_int::try_from(now * numbers.size) else { return Ok(None) };
        let mut position: c_int = 0;
        // Elements are at the distance of the extent, which may be negative.
        let from = buffer.cast::<u8>().wrapping_offset((done as isize).wrapping_mul(numbers.extent as isize));
        // SAFETY: the elements from `from` on are within the caller's buffer, and `bytes` bytes are free in `packed` from
        // `begin` on.
        let code = unsafe {
            mpi_sys::PMPI_Pack(
                from.cast(),
                now as c_int,
                datatype,
                packed.as_mut_ptr().add(begin).cast(),
                bytes,
                &mut position,
                nacre_mpi_comm_self(),
            )
        };
        result(code)?;
        if position != bytes {
            return Ok(None);
        }
        done += now;
    }
    Ok(Some(packed))
}

/// Returns a status that says that so many bytes were transferred.
pub fn status_of(bytes: u64) -> Result<MPI_Status, Code> {
    // SAFETY: a status is a struct of integers, for which zeros are values.
    let mut status: MPI_Status = unsafe { MaybeUninit::zeroed().assume_init() };
    set_bytes(&mut status, bytes)?;
    Ok(status)
}

/// Sets the number of bytes that a status says were transferred.
pub fn set_bytes(status: &mut MPI_Status, bytes: u64) -> Result<(), Code> {
    let bytes = MPI_Count::try_from(bytes).unwrap_or(MPI_Count::MAX);
    // SAFETY: the status is a valid one.
    unsafe {
        result(mpi_sys::PMPI_Status_set_elements_x(status, nacre_mpi_byte(), bytes))?;
        result(mpi_sys::PMPI_Status_set_cancelled(status, 0))
    }
}

/// Returns the number of bytes that a status says were transferred.
pub fn bytes_of(status: &MPI_Status) -> Result<u64, Code> {
    let mut bytes: MPI_Count = 0;
    // SAFETY: the status is a valid one; the result is written to a variable of the type that MPI declares.
    result(unsafe { mpi_sys::PMPI_Get_elements_x(status, nacre_mpi_byte(), &mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Hands a status over to a program, unless it does not want one.
///
/// # Safety
///
/// The pointer is one that the program gave for a status.
pub unsafe fn give(status: MPI_Status, to: *mut MPI_Status) {
    if !to.is_null() && to != nacre_mpi_status_ignore() {
        // SAFETY: it is neither of the values that stand for no status, so it points to one, says the caller.
        unsafe { *to = status };
    }
}

/// A status that is kept for later.
#[derive(Clone, Copy)]
pub struct KeptStatus(pub MPI_Status);

// SAFETY: a status is numbers, and MPI gives them no thread.
unsafe impl Send for KeptStatus {}

/// The processes that opened a file together, in a communicator of this library's own. Not freed when it is dropped, because that
/// is collective.
#[derive(Clone, Copy)]
pub struct Party {
    communicator: MPI_Comm,
    /// The number of this process.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
}

// SAFETY: handles on MPI's objects may be used by any thread; MPI itself forbids what it does not allow.
unsafe impl Send for Party {}
// SAFETY: as above.
unsafe impl Sync for Party {}

/// The tag of the creation of communicators.
const TAG: c_int = 0x6e61;

impl Party {
    /// Joins the processes that opened a file; none if some of them were started by others, so that this process's world lacks them.
    /// Collective over them.
    pub fn of(file: MPI_File) -> Result<Option<Party>, Code> {
        let (mut group, mut world) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let mut communicator = nacre_mpi_comm_world();
        // SAFETY: the groups are written before they are used, and are freed once; the lists have as many numbers as the group has
        // processes.
        unsafe {
            result(mpi_sys::PMPI_File_get_group(file, group.as_mut_ptr()))?;
            let mut group = group.assume_init();
            result(mpi_sys::PMPI_Comm_group(nacre_mpi_comm_world(), world.as_mut_ptr()))?;
            let mut world = world.assume_init();
            // MPICH 4.0 crashes when it is given the group of the file itself.
            let mut size = 0;
            result(mpi_sys::PMPI_Group_size(group, &mut size))?;
            let theirs: Vec<c_int> = (0..size).collect();
            let mut ours = theirs.clone();
            let translated =
                mpi_sys::PMPI_Group_translate_ranks(group, size, theirs.as_ptr(), world, ours.as_mut_ptr());
            mpi_sys::PMPI_Group_free(&mut group);
            result(translated)?;
            let is_known = !ours.contains(&nacre_mpi_undefined);
            let made = if is_known {
                let mut same = MaybeUninit::uninit();
                result(mpi_sys::PMPI_Group_incl(world, size, ours.as_ptr(), same.as_mut_ptr()))?;
                let mut same = same.assume_init();
                let made =
                    mpi_sys::PMPI_Comm_create_group(nacre_mpi_comm_world(), same, TAG, &mut communicator);
                mpi_sys::PMPI_Group_free(&mut same);
                made
            } else {
                nacre_mpi_success
            };
            mpi_sys::PMPI_Group_free(&mut world);
            result(made)?;
            if !is_known {
                return Ok(None);
            }
        }
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator was just made; the results are written to variables of the types that MPI declares.
        unsafe {
            result(mpi_sys::PMPI_Comm_rank(communicator, &mut rank))?;
            result(mpi_sys::PMPI_Comm_size(communicator, &mut size))?;
        }
        let number = |number: c_int| usize::try_from(number).unwrap_or(0);
        Ok(Some(Party { communicator, rank: number(rank), size: number(size) }))
    }

    /// Leaves the other processes. Collective over them.
    pub fn leave(mut self) {
        // SAFETY: the handle is not used again. If MPI does not free it, it stays.
        unsafe { mpi_sys::PMPI_Comm_free(&mut self.communicator) };
    }

    /// Tells rank 0's bytes to all. All give the same length.
    pub fn tell(&self, bytes: &mut [u8]) -> Result<(), Code> {
        let Ok(length) = c_int::try_from(bytes.len()) else { return Err(Code(nacre_mpi_err_io)) };
        // SAFETY: the buffer has as many bytes as is said.
        result(unsafe {
            mpi_sys::PMPI_Bcast(bytes.as_mut_ptr().cast(), length, nacre_mpi_byte(), 0, self.communicator)
        })
    }

    /// Returns whether each process succeeded, as all of them say.
    pub fn agree(&self, success: bool) -> Result<Vec<bool>, Code> {
        let (mine, mut all) = ([u8::from(success)], vec![0u8; self.size]);
        let byte = nacre_mpi_byte();
        // SAFETY: one byte of each process, of which there are `size`.
        result(unsafe {
            mpi_sys::PMPI_Allgather(
                mine.as_ptr().cast(),
                1,
                byte,
                all.as_mut_ptr().cast(),
                1,
                byte,
                self.communicator,
            )
        })?;
        Ok(all.into_iter().map(|byte| byte == 1).collect())
    }

    /// Waits until all are here.
    pub fn meet(&self) -> Result<(), Code> {
        // SAFETY: the call takes no memory of ours.
        result(unsafe { mpi_sys::PMPI_Barrier(self.communicator) })
    }

    /// Gathers everybody's bytes, up to a length for all together; rank 0 gets them, and nothing if they are longer.
    pub fn gather(&self, bytes: &[u8], all_max: usize) -> Result<Option<Vec<Vec<u8>>>, Code> {
        let mut lengths = vec![0u8; 8 * self.size];
        let mine = (bytes.len() as u64).to_le_bytes();
        let byte = nacre_mpi_byte();
        // SAFETY: eight bytes of each process, of which there are `size`.
        result(unsafe {
            mpi_sys::PMPI_Allgather(
                mine.as_ptr().cast(),
                8,
                byte,
                lengths.as_mut_ptr().cast(),
                8,
                byte,
                self.communicator,
            )
        })?;
        let lengths: Vec<u64> = lengths
            .chunks_exact(8)
            .map(|length| length.try_into().map_or(u64::MAX, u64::from_le_bytes))
            .collect();
        let all = lengths.iter().fold(0u64, |all, length| all.saturating_add(*length));
        if all > all_max.min(i32::MAX as usize) as u64 {
            return Ok(None);
        }
        let counts: Vec<c_int> = lengths.iter().map(|length| *length as c_int).collect();
        let starts: Vec<c_int> = counts
            .iter()
            .scan(0, |at, count| {
                let start = *at;
                *at += count;
                Some(start)
            })
            .collect();
        let mut gathered = vec![0u8; all as usize];
        // SAFETY: the bytes of process `i` go to `counts[i]` bytes from `starts[i]` on, all of which are within `gathered`.
        result(unsafe {
            mpi_sys::PMPI_Gatherv(
                bytes.as_ptr().cast(),
                bytes.len() as c_int,
                byte,
                gathered.as_mut_ptr().cast(),
                counts.as_ptr(),
                starts.as_ptr(),
                byte,
                0,
                self.communicator,
            )
        })?;
        if self.rank != 0 {
            return Ok(Some(Vec::new()));
        }
        let parts = starts.iter().zip(&counts);
        Ok(Some(
            parts
                .map(|(start, count)| gathered[*start as usize..(*start + *count) as usize].to_vec())
                .collect(),
        ))
    }
}

/// Adds an error code of the class of I/O errors, with its text. Returns the class itself where the library does not keep the text, as
/// MPICH 4.0 does with codes of classes that are not new.
pub fn add_error(text: &std::ffi::CStr) -> Result<c_int, Code> {
    let (mut code, mut length) = (0, 0);
    let mut kept = vec![0u8; usize::try_from(nacre_mpi_max_error_string).unwrap_or(0) + 1];
    // SAFETY: the results are written to variables of their types, a text takes MPI_MAX_ERROR_STRING bytes at most, and the one that is
    // given ends with a zero.
    unsafe {
        result(mpi_sys::PMPI_Add_error_code(nacre_mpi_err_io, &mut code))?;
        result(mpi_sys::PMPI_Add_error_string(code, text.as_ptr().cast_mut()))?;
        result(mpi_sys::PMPI_Error_string(code, kept.as_mut_ptr().cast(), &mut length))?;
    }
    let is_kept = kept.split(|byte| *byte == 0).next() == Some(text.to_bytes());
    Ok(if is_kept { code } else { nacre_mpi_err_io })
}

/// Calls the error handler of a file.
pub fn call_error_handler(file: MPI_File, code: c_int) {
    // SAFETY: the call takes no memory of ours.
    unsafe { mpi_sys::PMPI_File_call_errhandler(file, code) };
}

/// Returns the number of this process in the job.
pub fn rank() -> c_int {
    let mut rank = -1;
    // SAFETY: the result is written to a variable of its type.
    unsafe { mpi_sys::PMPI_Comm_rank(nacre_mpi_comm_world(), &mut rank) };
    rank
}

/// Returns the number of this process in a communicator.
pub fn rank_in(communicator: MPI_Comm) -> Result<c_int, Code> {
    let mut rank = -1;
    // SAFETY: the result is written to a variable of its type.
    result(unsafe { mpi_sys::PMPI_Comm_rank(communicator, &mut rank) })?;
    Ok(rank)
}
