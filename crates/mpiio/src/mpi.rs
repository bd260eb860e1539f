//! The MPI library, as far as this crate asks it: its types taken apart, its communicators, its constants.
//!
//! One of the modules with `unsafe` code, as are those of the interposed calls and what they hand on (`interpose`, `next`, `transfer`,
//! `atomic`, `request`), `party`, `signals` and `start`. Every function that is
//! called here by its profiling name is one that this library does not stand in front of; the others are looked up.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;

pub use mpi_sys::{
    MPI_Comm, MPI_Count, MPI_Datatype, MPI_File, MPI_Info, MPI_Offset, MPI_Request, MPI_Status,
};

use crate::failure::Failure;
use crate::next::Next;

// SAFETY: they are defined in constant.c, with these types.
unsafe extern "C" {
    safe static nacre_mpi_combiners: [c_int; 13];
    safe static nacre_mpi_combiners_f90: [c_int; 3];
    safe static nacre_mpi_order_fortran: c_int;
    safe static nacre_mpi_distribute_none: c_int;
    safe static nacre_mpi_distribute_block: c_int;
    safe static nacre_mpi_distribute_cyclic: c_int;
    safe static nacre_mpi_distribute_default: c_int;
    safe static nacre_mpi_mode_rdonly: c_int;
    safe static nacre_mpi_mode_wronly: c_int;
    safe static nacre_mpi_mode_sequential: c_int;
    safe static nacre_mpi_mode_create: c_int;
    safe static nacre_mpi_mode_excl: c_int;
    safe static nacre_mpi_mode_delete_on_close: c_int;
    safe static nacre_mpi_is_open_mpi: c_int;
    safe static nacre_mpi_seek_set: c_int;
    safe static nacre_mpi_seek_cur: c_int;
    safe static nacre_mpi_success: c_int;
    safe static nacre_mpi_err_io: c_int;
    safe static nacre_mpi_err_no_space: c_int;
    safe static nacre_mpi_err_quota: c_int;
    safe static nacre_mpi_max_datarep_string: c_int;
    safe static nacre_mpi_max_error_string: c_int;
    safe fn nacre_mpi_byte() -> MPI_Datatype;
    safe fn nacre_mpi_datatype_null() -> MPI_Datatype;
    safe fn nacre_mpi_comm_world() -> MPI_Comm;
    safe fn nacre_mpi_status_ignore() -> *mut MPI_Status;
    safe fn nacre_mpi_info_null() -> MPI_Info;
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

/// Returns the class of the error of a system call.
pub fn error_class_of(error: &std::io::Error) -> c_int {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => nacre_mpi_err_no_space,
        Some(libc::EDQUOT) => nacre_mpi_err_quota,
        _ => nacre_mpi_err_io,
    }
}

/// An MPI library, or one that is derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// MPICH.
    Mpich,
    /// Open MPI.
    OpenMpi,
}

impl Library {
    /// Returns the one that this library was built for.
    pub fn own() -> Library {
        if nacre_mpi_is_open_mpi != 0 { Library::OpenMpi } else { Library::Mpich }
    }

    /// Returns the one that the program is linked with, if it is known here. MPI need not be initialized.
    pub fn of_program() -> Option<Library> {
        // As long as that of any library, which is MPICH's, with a zero at its end.
        const VERSION_MAX: usize = 8192;
        let (mut version, mut length) = ([0u8; VERSION_MAX + 1], 0);
        // SAFETY: the name and its length are written to variables that are large enough.
        let code = unsafe { mpi_sys::PMPI_Get_library_version(version.as_mut_ptr().cast(), &mut length) };
        result(code).ok()?;
        Library::of_version(&CStr::from_bytes_until_nul(&version).ok()?.to_string_lossy())
    }

    /// Returns the one whose description of itself this is.
    pub fn of_version(version: &str) -> Option<Library> {
        let named = |names: &[&str]| names.iter().any(|name| version.contains(name));
        match (named(&["MPICH", "MVAPICH", "Intel(R) MPI"]), named(&["Open MPI"])) {
            (true, false) => Some(Library::Mpich),
            (false, true) => Some(Library::OpenMpi),
            _ => None,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Library::Mpich => "MPICH",
            Library::OpenMpi => "Open MPI",
        }
    }

    /// Returns its name as a value of `nacre mpirun --mpi`.
    pub fn flag(self) -> &'static str {
        match self {
            Library::Mpich => "mpich",
            Library::OpenMpi => "openmpi",
        }
    }
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
        if nacre_mpi_combiners_f90.contains(&number) {
            return Some(Combiner::Named);
        }
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
        if !matches!(envelope(self.0), Ok(envelope) if envelope.combiner != Some(Combiner::Named)) {
            return;
        }
        // SAFETY: the handle is this value's own, and is not used again. If MPI does not free it, it stays.
        unsafe { mpi_sys::PMPI_Type_free(&mut self.0) };
    }
}

/// Returns a datatype that is as another one, and stays when that is freed.
pub fn duplicate(datatype: MPI_Datatype) -> Result<OwnedType, Code> {
    let mut duplicate = nacre_mpi_datatype_null();
    // SAFETY: the result is written to a variable of its type.
    result(unsafe { mpi_sys::PMPI_Type_dup(datatype, &mut duplicate) })?;
    Ok(OwnedType(duplicate))
}

struct Envelope {
    integers: c_int,
    addresses: c_int,
    types: c_int,
    /// None if it is not known here, or if the constructor was one for large counts.
    combiner: Option<Combiner>,
}

/// Returns how a datatype was constructed.
fn envelope(datatype: MPI_Datatype) -> Result<Envelope, Code> {
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
            return Ok(Envelope { integers: 0, addresses: 0, types: 0, combiner: None });
        }
    }
    let (mut integers, mut addresses, mut types, mut combiner) = (0, 0, 0, 0);
    // SAFETY: the results are written to variables of the types that MPI declares.
    let code = unsafe {
        mpi_sys::PMPI_Type_get_envelope(datatype, &mut integers, &mut addresses, &mut types, &mut combiner)
    };
    result(code)?;
    Ok(Envelope { integers, addresses, types, combiner: Combiner::of(combiner) })
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
    let Envelope { integers, addresses, types, combiner } = envelope(datatype)?;
    let Some(combiner) = combiner else { return Ok(None) };
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

/// Returns whether elements in memory are contiguous bytes, in the order of the data. Not all types of which that holds are found out.
pub fn is_dense(datatype: MPI_Datatype) -> Result<bool, Code> {
    let Some(Numbers { size, lower, extent, true_lower, true_extent }) = numbers(datatype)? else {
        return Ok(false);
    };
    if lower != 0 || true_lower != 0 || true_extent != extent || u64::try_from(extent) != Ok(size) {
        return Ok(false);
    }
    Ok(match envelope(datatype)?.combiner {
        Some(Combiner::Named) => true,
        Some(Combiner::Dup | Combiner::Contiguous) => match contents(datatype)? {
            Some(Contents { types, .. }) => match types.first() {
                Some(of) => is_dense(of.handle())?,
                None => false,
            },
            None => false,
        },
        _ => false,
    })
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

/// Returns the handle of no info object.
pub fn info_null() -> MPI_Info {
    nacre_mpi_info_null()
}

/// Returns the value of a hint in an info object, if it is there. What is longer than the values that are known is cut off.
pub fn hint(info: MPI_Info, name: &CStr) -> Option<String> {
    const LENGTH_MAX: usize = 64;
    if info == nacre_mpi_info_null() {
        return None;
    }
    let (mut value, mut is_there) = ([0u8; LENGTH_MAX + 1], 0);
    // SAFETY: the name ends with a zero, and the value has room for this many bytes and a zero.
    let code = unsafe {
        mpi_sys::PMPI_Info_get(
            info,
            name.as_ptr(),
            LENGTH_MAX as c_int,
            value.as_mut_ptr().cast::<c_char>(),
            &mut is_there,
        )
    };
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    (code == nacre_mpi_success && is_there != 0).then(|| String::from_utf8_lossy(value).into_owned())
}

/// Sets a hint in an info object, which is created if it is none.
pub fn set_hint(info: &mut MPI_Info, name: &CStr, value: &str) -> Result<(), Code> {
    let value = CString::new(value).unwrap_or_default();
    // SAFETY: the texts end with zeros, and the new handle is written to a variable of its type.
    unsafe {
        if *info == nacre_mpi_info_null() {
            result(mpi_sys::PMPI_Info_create(info))?;
        }
        result(mpi_sys::PMPI_Info_set(*info, name.as_ptr(), value.as_ptr()))
    }
}

/// Returns the type of bytes.
pub fn byte() -> MPI_Datatype {
    nacre_mpi_byte()
}

/// Returns the MPI library's individual pointer of a file, in elementary types.
pub fn position(file: MPI_File) -> Result<i64, Code> {
    type Position = unsafe extern "C" fn(MPI_File, *mut MPI_Offset) -> c_int;
    static POSITION: Next = Next::new(c"PMPI_File_get_position");
    let mut offset: MPI_Offset = 0;
    // SAFETY: MPI declares the function with this type; the result is written to a variable of its type.
    let code = unsafe { POSITION.find::<Position>().map(|get_position| get_position(file, &mut offset)) };
    result(code.unwrap_or(nacre_mpi_err_io))?;
    Ok(offset)
}

/// Moves the MPI library's individual pointer of a file, in elementary types.
pub fn seek(file: MPI_File, offset: i64) -> Result<(), Code> {
    type Seek = unsafe extern "C" fn(MPI_File, MPI_Offset, c_int) -> c_int;
    static SEEK: Next = Next::new(c"PMPI_File_seek");
    // SAFETY: MPI declares the function with this type, and it takes no memory of ours.
    let code = unsafe { SEEK.find::<Seek>().map(|seek| seek(file, offset, nacre_mpi_seek_set)) };
    result(code.unwrap_or(nacre_mpi_err_io))
}

/// A place from which a seek counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The beginning of the view.
    Set,
    /// The pointer.
    Current,
    /// The end of the file, or what is no such place.
    Other,
}

impl Whence {
    /// Returns the place that a constant stands for.
    pub fn of(constant: c_int) -> Whence {
        match constant {
            set if set == nacre_mpi_seek_set => Whence::Set,
            current if current == nacre_mpi_seek_cur => Whence::Current,
            _ => Whence::Other,
        }
    }
}

/// The accesses that a file was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Reading.
    pub reads: bool,
    /// Writing.
    pub writes: bool,
    /// Use at the shared pointer only.
    pub is_sequential: bool,
    /// The file was not there before.
    pub is_new: bool,
    /// The file is deleted when it is closed.
    pub is_deleted_on_close: bool,
}

impl Mode {
    /// Returns what an access mode allows.
    pub fn of(mode: c_int) -> Mode {
        Mode {
            reads: mode & nacre_mpi_mode_wronly == 0,
            writes: mode & nacre_mpi_mode_rdonly == 0,
            is_sequential: mode & nacre_mpi_mode_sequential != 0,
            is_new: mode & nacre_mpi_mode_create != 0 && mode & nacre_mpi_mode_excl != 0,
            is_deleted_on_close: mode & nacre_mpi_mode_delete_on_close != 0,
        }
    }
}

/// Runs of elements in memory, each as long as the counts of 31 bits of `MPI_Pack` and `MPI_Unpack` allow: for each, the number of its
/// first element, that of its elements, and that of its bytes. None if one element is too long.
fn batches(count: u64, numbers: Numbers) -> Option<impl Iterator<Item = (u64, c_int, c_int)>> {
    const BATCH_BYTES: u64 = 1 << 28;
    if numbers.size > i32::MAX as u64 {
        return None;
    }
    let size = numbers.size.max(1);
    let batch = (BATCH_BYTES / size).clamp(1, i32::MAX as u64);
    Some((0..count.div_ceil(batch)).map(move |index| {
        let first = index * batch;
        let elements = batch.min(count - first);
        // Both are at most 31 bits, by the bounds above.
        (first, elements as c_int, (elements * numbers.size) as c_int)
    }))
}

/// Elements in memory as MPI's functions take them.
struct Elements {
    address: *const u8,
    count: c_int,
    datatype: MPI_Datatype,
    /// The datatype, where it was made for this.
    _made: Option<OwnedType>,
}

impl Elements {
    /// Describes elements at an address. At `MPI_BOTTOM` the datatype has their addresses, but MPICH's `MPI_Pack` and `MPI_Unpack` refuse
    /// a null pointer all the same, so they are described from another address.
    fn at(address: *const u8, count: c_int, datatype: MPI_Datatype) -> Result<Elements, Failure> {
        static ELSEWHERE: u8 = 0;
        if !address.is_null() {
            return Ok(Elements { address, count, datatype, _made: None });
        }
        let address = &raw const ELSEWHERE;
        let back = (address as mpi_sys::MPI_Aint).wrapping_neg();
        let mut made = nacre_mpi_datatype_null();
        // SAFETY: one block of a type that the program has committed; the result is written to a variable of its type.
        let code = unsafe { mpi_sys::PMPI_Type_create_hindexed(1, &count, &back, datatype, &mut made) };
        result(code).map_err(Failure::NotReported)?;
        let mut made = OwnedType(made);
        // SAFETY: the handle is the one that was just made.
        result(unsafe { mpi_sys::PMPI_Type_commit(&mut made.0) }).map_err(Failure::NotReported)?;
        Ok(Elements { address, count: 1, datatype: made.0, _made: Some(made) })
    }
}

/// Packs elements in memory into as many contiguous bytes.
///
/// # Safety
///
/// The buffer holds this many elements of the datatype, which has these numbers.
pub unsafe fn pack(
    buffer: *const c_void,
    count: u64,
    datatype: MPI_Datatype,
    numbers: Numbers,
    communicator: MPI_Comm,
) -> Result<Vec<u8>, Failure> {
    let impossible = || Failure::Own("the elements in memory cannot be packed".to_owned());
    let length = numbers.size.checked_mul(count).and_then(|bytes| usize::try_from(bytes).ok());
    let mut packed = vec![0u8; length.ok_or_else(impossible)?];
    for (first, elements, bytes) in batches(count, numbers).ok_or_else(impossible)? {
        let mut position: c_int = 0;
        // Elements are at the distance of the extent, which may be negative.
        let from =
            buffer.cast::<u8>().wrapping_offset((first as isize).wrapping_mul(numbers.extent as isize));
        let elements = Elements::at(from, elements, datatype)?;
        // SAFETY: the elements from `from` on are within the caller's buffer, and `bytes` bytes are free in `packed` from
        // where those of the elements before end.
        let code = unsafe {
            mpi_sys::PMPI_Pack(
                elements.address.cast(),
                elements.count,
                elements.datatype,
                packed.as_mut_ptr().add((first * numbers.size) as usize).cast(),
                bytes,
                &mut position,
                communicator,
            )
        };
        result(code).map_err(Failure::NotReported)?;
        if position != bytes {
            return Err(impossible());
        }
    }
    Ok(packed)
}

/// Unpacks contiguous bytes into elements in memory.
///
/// # Safety
///
/// The buffer has room for this many elements of the datatype, which has these numbers.
pub unsafe fn unpack(
    packed: &[u8],
    buffer: *mut c_void,
    count: u64,
    datatype: MPI_Datatype,
    numbers: Numbers,
    communicator: MPI_Comm,
) -> Result<(), Failure> {
    let impossible = || Failure::Own("the elements in memory cannot be unpacked".to_owned());
    if numbers.size.checked_mul(count) != Some(packed.len() as u64) {
        return Err(impossible());
    }
    for (first, elements, bytes) in batches(count, numbers).ok_or_else(impossible)? {
        let mut position: c_int = 0;
        let to = buffer.cast::<u8>().wrapping_offset((first as isize).wrapping_mul(numbers.extent as isize));
        let elements = Elements::at(to, elements, datatype)?;
        // SAFETY: the elements from `to` on are within the caller's buffer, and `bytes` bytes are in `packed` from where
        // those of the elements before end.
        let code = unsafe {
            mpi_sys::PMPI_Unpack(
                packed.as_ptr().add((first * numbers.size) as usize).cast(),
                bytes,
                &mut position,
                elements.address.cast_mut().cast(),
                elements.count,
                elements.datatype,
                communicator,
            )
        };
        result(code).map_err(Failure::NotReported)?;
    }
    Ok(())
}

/// Returns a status with a number of bytes as those that were transferred.
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
        // SAFETY: it is neither of the values that stand for no status, so it points to one, says the caller. Its error is for
        // calls that return several statuses.
        unsafe {
            let error = (*to).MPI_ERROR;
            *to = status;
            (*to).MPI_ERROR = error;
        }
    }
}

/// A status that is kept for later.
#[derive(Clone, Copy)]
pub struct KeptStatus(pub MPI_Status);

// SAFETY: a status is numbers, and MPI gives them no thread.
unsafe impl Send for KeptStatus {}

/// Adds an error code of the class of I/O errors, with its text. Returns the class itself where the library does not keep the text, as
/// MPICH 4.0 does with codes of classes that are not new.
pub fn add_error(text: &CStr) -> Result<c_int, Code> {
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

/// Returns an access mode with or without the deletion of the file when it is closed.
pub fn deleted_on_close(mode: c_int, is_deleted: bool) -> c_int {
    let others = mode & !nacre_mpi_mode_delete_on_close;
    if is_deleted { others | nacre_mpi_mode_delete_on_close } else { others }
}

/// Opens a file, and returns the call's code. Collective over the processes of the communicator.
///
/// # Safety
///
/// The arguments are those of a call of MPI.
pub unsafe fn open(
    communicator: MPI_Comm,
    name: *const c_char,
    mode: c_int,
    info: MPI_Info,
    file: *mut MPI_File,
) -> c_int {
    type Open = unsafe extern "C" fn(MPI_Comm, *const c_char, c_int, MPI_Info, *mut MPI_File) -> c_int;
    static OPEN: Next = Next::new(c"PMPI_File_open");
    // SAFETY: MPI declares the function with this type; the arguments are what the caller says.
    let code = unsafe { OPEN.find::<Open>().map(|open| open(communicator, name, mode, info, file)) };
    code.unwrap_or(nacre_mpi_err_io)
}

/// Closes a file. Collective over the processes that opened it.
pub fn close(file: &mut MPI_File) {
    type Close = unsafe extern "C" fn(*mut MPI_File) -> c_int;
    static CLOSE: Next = Next::new(c"PMPI_File_close");
    // SAFETY: MPI declares the function with this type; the handle is not used again. If MPI does not close the file, it stays.
    unsafe {
        if let Some(close) = CLOSE.find::<Close>() {
            close(file);
        }
    }
}

/// Calls the error handler of a file.
pub fn call_error_handler(file: MPI_File, code: c_int) {
    // SAFETY: the call takes no memory of ours.
    unsafe { mpi_sys::PMPI_File_call_errhandler(file, code) };
}

/// Returns whether a request is complete, and frees it then.
pub fn test(request: &mut MPI_Request) -> Result<bool, Code> {
    type Test = unsafe extern "C" fn(*mut MPI_Request, *mut c_int, *mut MPI_Status) -> c_int;
    static TEST: Next = Next::new(c"PMPI_Test");
    let mut flag = 0;
    // SAFETY: MPI declares the function with this type; the results are written to variables of their types.
    let code = unsafe { TEST.find::<Test>().map(|test| test(request, &mut flag, nacre_mpi_status_ignore())) };
    result(code.unwrap_or(nacre_mpi_err_io))?;
    Ok(flag != 0)
}

/// Returns the number of this process in the job.
pub fn rank() -> c_int {
    let mut rank = -1;
    // SAFETY: the result is written to a variable of its type.
    unsafe { mpi_sys::PMPI_Comm_rank(nacre_mpi_comm_world(), &mut rank) };
    rank
}
