//! Entering and leaving atomic mode.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use crate::failure::Failure;
use crate::identity::Identity;
use crate::mpi::{self, MPI_File, Party};
use crate::session;
use crate::table::{Atomic, Open};

/// Sets a file's mode. Collective over the processes that opened it: all of them succeed, or none does.
pub fn set(file: MPI_File, open: &Open, is_atomic: bool) -> Result<c_int, Failure> {
    match (open.atomic(), is_atomic) {
        (None, true) => {
            let strangers =
                "processes that were started by MPI_Comm_spawn opened the file too, which is not supported";
            let party = Party::of(file)?.ok_or_else(|| Failure::Own(strangers.to_owned()))?;
            match enter(open, party) {
                Ok(atomic) => drop(open.set_atomic(Some(Arc::new(atomic)))),
                Err(failure) => {
                    // Others may end the job as soon as they return, so it is said before.
                    let failure = failure.said("MPI_File_set_atomicity");
                    party.meet()?;
                    party.leave();
                    return Err(failure);
                }
            }
        }
        (Some(atomic), false) => {
            open.set_atomic(None);
            atomic.party.leave();
        }
        _ => {}
    }
    Ok(mpi::success())
}

fn enter(open: &Open, party: Party) -> Result<Atomic, Failure> {
    // The first process found out which file it is when it was opened.
    let mut message = [0; 17];
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
    party.tell(&mut message)?;
    let [known, identity @ ..] = message;
    if known == 0 {
        return Err(why.map_or(Failure::Elsewhere, Failure::Own));
    }
    let identity = Identity::from_bytes(identity);
    let locks = session::file(&identity.name()).map_err(|error| error.message);
    let opened = locks.and_then(|locks| {
        let file = if open.mode.writes { Some(open.open_itself(&identity)?) } else { None };
        Ok((locks, file))
    });
    let succeeded = party.agree(opened.is_ok())?;
    match (opened, succeeded.iter().position(|succeeded| !succeeded)) {
        (Ok((locks, file)), None) => Ok(Atomic {
            party,
            locks,
            file,
            mode: open.mode,
            pointer: Mutex::default(),
            view: Mutex::default(),
            split: Mutex::default(),
        }),
        // One says it for all.
        (Err(sentence), Some(first)) if first == party.rank => Err(Failure::Own(sentence)),
        _ => Err(Failure::Elsewhere),
    }
}
