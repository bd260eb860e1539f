//! Entering and leaving atomic mode.

use std::ffi::{OsStr, c_int};
use std::sync::{Arc, Mutex, OnceLock};

use nacre_quantity::Escaped;

use crate::failure::Failure;
use crate::hint;
use crate::identity::Identity;
use crate::mpi::{self, MPI_File};
use crate::party::Party;
use crate::session;
use crate::table::{Atomic, Open, hold};

/// The environment variable by which files are in atomic mode as soon as they are open.
const ATOMIC_VARIABLE: &str = "NACRE_MPIIO_ATOMIC";

/// Returns whether files are in atomic mode as soon as they are open: for libraries that have no call for it.
///
/// # Errors
///
/// A sentence, if the environment says neither.
pub fn is_initial() -> Result<bool, String> {
    static IS: OnceLock<Result<bool, String>> = OnceLock::new();
    IS.get_or_init(|| switch(&std::env::var_os(ATOMIC_VARIABLE).unwrap_or_default())).clone()
}

fn switch(value: &OsStr) -> Result<bool, String> {
    match value.to_str() {
        Some("" | "0" | "no" | "false") => Ok(false),
        Some("1" | "yes" | "true") => Ok(true),
        _ => {
            let value = Escaped::of(value);
            Err(format!("{ATOMIC_VARIABLE}={value} is wrong: the values are yes, true, 1, no, false and 0"))
        }
    }
}

/// Sets a file's mode, for a call of the program. Collective over the processes that opened it: all of them succeed, or none does.
pub fn set(call: &str, file: MPI_File, open: &Open, is_atomic: bool) -> Result<c_int, Failure> {
    match (open.atomic(), is_atomic) {
        (None, true) => {
            let missing = "not all processes that opened the file have Nacre's library: one was started without it, or is \
                linked statically";
            let party = open.party.ok_or_else(|| Failure::Own(missing.to_owned()))?;
            match enter(file, open, party) {
                Ok(atomic) => {
                    open.set_atomic(Some(Arc::new(atomic)));
                    hint::check_stripe(call, open);
                }
                Err(failure) => {
                    // Others may end the job as soon as they return, so it is said before.
                    let failure = failure.said(call);
                    party.meet()?;
                    return Err(failure);
                }
            }
        }
        (Some(atomic), false) => {
            open.set_atomic(None);
            if !open.mode.is_sequential {
                mpi::seek(file, *hold(&atomic.pointer))?;
            }
        }
        _ => {}
    }
    Ok(mpi::success())
}

fn enter(file: MPI_File, open: &Open, party: Party) -> Result<Atomic, Failure> {
    // The first process found out which file it is when it was opened.
    let mut message = [0; 18];
    let mut why = None;
    if party.rank == 0 {
        match open.identity.clone().unwrap_or_else(|| Err("nothing is known of the file".to_owned())) {
            Ok(identity) => {
                message[0] = 1;
                message[1..].copy_from_slice(&identity.to_bytes());
            }
            Err(sentence) => why = Some(sentence),
        }
    }
    party.broadcast(&mut message)?;
    let [known, identity @ ..] = message;
    if known == 0 {
        return Err(why.map_or(Failure::Elsewhere, Failure::Own));
    }
    let identity = Identity::from_bytes(identity);
    if identity.is_of_one_node && !party.is_on_one_node()? {
        let sentence =
            "the file system gives itself no number by which nodes could know it, and the job is on several";
        return Err(if party.rank == 0 { Failure::Own(sentence.to_owned()) } else { Failure::Elsewhere });
    }
    let pointer = if open.mode.is_sequential { Ok(0) } else { mpi::position(file) };
    let locks = session::file(&identity.name()).map_err(|error| error.message);
    let opened = locks.and_then(|locks| {
        let pointer = pointer.map_err(|_| "the individual pointer of the file is not known".to_owned())?;
        match &open.wrong_setting {
            Some(sentence) => Err(sentence.clone()),
            None => Ok((locks, open.open_itself(&identity)?, pointer)),
        }
    });
    let succeeded = party.agree(opened.is_ok())?;
    match (opened, succeeded.iter().position(|succeeded| !succeeded)) {
        (Ok((locks, file, pointer)), None) => Ok(Atomic {
            party,
            locks,
            hints: open.hints.clone(),
            file,
            mode: open.mode,
            pointer: Mutex::new(pointer),
            view: Mutex::default(),
            split: Mutex::default(),
            exchanged: open.exchanged(),
        }),
        // One prints it for all.
        (Err(sentence), Some(first)) if first == party.rank => Err(Failure::Own(sentence)),
        _ => Err(Failure::Elsewhere),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_for_all_files_is_a_switch_and_other_values_are_refused() {
        for (values, is_on) in [(["", "0", "no", "false"], false), (["1", "yes", "true", "1"], true)] {
            for value in values {
                assert_eq!(switch(OsStr::new(value)), Ok(is_on), "{value}");
            }
        }
        for value in ["on", "No", "2", " "] {
            let sentence = switch(OsStr::new(value)).unwrap_err();
            assert!(sentence.starts_with("NACRE_MPIIO_ATOMIC="), "{sentence}");
        }
    }
}
