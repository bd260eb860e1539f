//! The members of a store, as learned from the servers whose addresses a client was given.
//!
//! A client is given addresses; the servers there report the store's members. It adopts their list if all of them
//! report the same and each address is that of a member; from then on it places objects by that list alone, and never
//! by the addresses that it was given. A handle's list does not change: a server that has another one later is refused.

use std::sync::OnceLock;

use futures::channel::oneshot;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::Address;
use parking_lot::Mutex;

use crate::join::Proof;
use crate::members::{Members, Membership};

/// A store handle's knowledge of the members.
pub(super) struct Roster {
    /// The addresses that the client was given.
    pub(super) given: Vec<Address>,
    known: OnceLock<JoinedMembers>,
    round: Mutex<Round>,
}

/// The members, once they are known.
#[derive(Debug)]
pub(super) struct JoinedMembers {
    pub(super) members: Members,
    pub(super) proof: Proof,
    /// The member at each of the given addresses.
    pub(super) contacts: Vec<usize>,
}

/// One round of asking every given address.
#[derive(Default)]
struct Round {
    answers: Vec<Option<Result<Membership, StoreError>>>,
    /// The waiters for its outcome. A round is under way while there are any.
    waiting: Vec<oneshot::Sender<Result<(), StoreError>>>,
}

/// The task of a caller that needs the members: to ask the servers if it began the round, and to wait.
pub(super) struct Wait {
    /// True if the caller began the round, and so has to ask every given address.
    pub(super) begun: bool,
    /// The outcome of the round.
    pub(super) outcome: oneshot::Receiver<Result<(), StoreError>>,
}

impl Roster {
    pub(super) fn new(given: Vec<Address>) -> Roster {
        Roster { given, known: OnceLock::new(), round: Mutex::default() }
    }

    /// Returns the members, if they are known.
    pub(super) fn known(&self) -> Option<&JoinedMembers> {
        self.known.get()
    }

    /// Joins the round under way, or begins one.
    pub(super) fn wait(&self) -> Wait {
        let (sender, outcome) = oneshot::channel();
        let mut round = self.round.lock();
        if self.known.get().is_some() {
            // The send fails only if the caller is gone.
            let _ = sender.send(Ok(()));
            return Wait { begun: false, outcome };
        }
        let begun = round.waiting.is_empty();
        if begun {
            round.answers = vec![None; self.given.len()];
        }
        round.waiting.push(sender);
        Wait { begun, outcome }
    }

    /// Returns the outcome of the round under way, for a server that was asked in it; `None` if there is none.
    pub(super) fn follow(&self) -> Option<oneshot::Receiver<Result<(), StoreError>>> {
        let mut round = self.round.lock();
        if round.waiting.is_empty() {
            return None;
        }
        let (sender, outcome) = oneshot::channel();
        round.waiting.push(sender);
        Some(outcome)
    }

    /// Records the result of asking the address with this index.
    pub(super) fn reply_received(&self, index: usize, answer: Result<Membership, StoreError>) {
        let mut round = self.round.lock();
        if self.known.get().is_some() || round.waiting.is_empty() {
            return;
        }
        round.answers[index] = Some(answer);
        let Some(outcome) = conclude(&self.given, &round.answers) else { return };
        let outcome = outcome.map(|known| {
            // The lock is held, so nothing else has set it since the check.
            let _ = self.known.set(known);
        });
        for sender in std::mem::take(&mut round.waiting) {
            // The waiter may be gone.
            let _ = sender.send(outcome.clone());
        }
    }
}

fn invalid(text: String) -> StoreError {
    StoreError::new(ErrorKind::Invalid, text)
}

/// Returns the members as soon as the answers determine them; an error if all answers are there and do not.
fn conclude(
    given: &[Address],
    answers: &[Option<Result<Membership, StoreError>>],
) -> Option<Result<JoinedMembers, StoreError>> {
    let found = answers.iter().flatten().find_map(|answer| answer.as_ref().ok());
    let mut contacts = Vec::with_capacity(given.len());
    let mut failure: Option<StoreError> = None;
    for (address, answer) in given.iter().zip(answers) {
        let member = match (answer, found) {
            (Some(Ok(own)), Some(found)) if own.members() == found.members() => Ok(own.own()),
            (Some(Ok(own)), Some(found)) => Err(Some(differ(given, answers, own, found))),
            // A server that refuses this client is not ignored.
            (Some(Err(error)), _) if error.kind != ErrorKind::Unavailable => Err(Some(error.clone())),
            // A server that does not answer, or has not yet, is identified by its name if the address is spelt as in
            // the list.
            (_, Some(found)) => match position(found.members(), address) {
                Some(member) => Ok(member),
                None => Err(answer.as_ref().and_then(|answer| answer.as_ref().err()).cloned()),
            },
            (Some(Err(error)), None) => Err(Some(error.clone())),
            (_, None) => Err(None),
        };
        match member {
            Ok(member) => contacts.push(member),
            // The answer may still come.
            Err(None) => return None,
            // A refusal tells more than another server's being out of reach.
            Err(Some(error)) => match &failure {
                Some(first) if first.kind != ErrorKind::Unavailable => {}
                _ => failure = Some(error),
            },
        }
    }
    if answers.iter().any(Option::is_none) && failure.is_some() {
        return None;
    }
    match (failure, found) {
        (None, Some(found)) => {
            let members = found.members().clone();
            if let Some(name) = astray(given, &members) {
                let text = format!(
                    "the servers at {} name the member {name}, which leads to this client's own machine: a member's name \
                     must lead to it from everywhere",
                    given.iter().map(Address::to_string).collect::<Vec<_>>().join(",")
                );
                return Some(Err(invalid(text)));
            }
            Some(Ok(JoinedMembers { proof: Proof::of(&members), members, contacts }))
        }
        (Some(error), _) => Some(Err(error)),
        (None, None) => None,
    }
}

/// Returns the place of the member that has an address as its name. No name has other bytes than text.
fn position(members: &Members, address: &Address) -> Option<usize> {
    members.position(address.to_os_string().to_str()?)
}

/// Returns a member whose name leads to the client's own machine although no local server was named: servers elsewhere
/// must not direct clients to services that listen for this machine alone.
fn astray<'a>(given: &[Address], members: &'a Members) -> Option<&'a str> {
    if given.iter().any(Address::is_local) {
        return None;
    }
    let local = |name: &&String| name.parse().is_ok_and(|address: Address| address.is_local());
    members.names().iter().find(local).map(String::as_str)
}

/// Returns the error for servers that do not belong to one store.
fn differ(
    given: &[Address],
    answers: &[Option<Result<Membership, StoreError>>],
    one: &Membership,
    other: &Membership,
) -> StoreError {
    let address = |wanted: &Membership| {
        let found = given.iter().zip(answers).find(|(_, answer)| match answer {
            Some(Ok(answer)) => answer.members() == wanted.members(),
            _ => false,
        });
        found.map_or_else(|| wanted.name().to_owned(), |(address, _)| address.to_string())
    };
    let list = |membership: &Membership| match membership.is_alone() {
        true => "keeps a store by itself".to_owned(),
        false => format!("has the members {}", membership.members()),
    };
    invalid(format!(
        "the servers named are not those of one store: {} {}, {} {}; start the servers of one store with the same \
         --members",
        address(other),
        list(other),
        address(one),
        list(one)
    ))
}

/// Returns the error for a server whose list differs from this handle's.
pub(super) fn changed(known: &JoinedMembers, theirs: &Membership) -> StoreError {
    if known.members.names().len() == 1 && theirs.is_alone() {
        let text = "the server now keeps another store than when this one was opened; open the store again";
        return invalid(text.to_owned());
    }
    invalid(format!(
        "it has the members {}, and this store was opened with the members {}: either the list was changed since, then open \
         the store again, or the servers named are not those of one store",
        theirs.members(),
        known.members
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<Address> {
        text.split(' ').map(|address| address.parse().unwrap()).collect()
    }

    fn member(version: u64, own: &str) -> Option<Result<Membership, StoreError>> {
        let names = ["a:1", "b:1"].map(str::to_owned);
        Some(Ok(Membership::new(Members::new(version, names).unwrap(), own).unwrap()))
    }

    fn lost() -> Option<Result<Membership, StoreError>> {
        Some(Err(StoreError::new(ErrorKind::Unavailable, "gone")))
    }

    fn contacts(given: &str, answers: &[Option<Result<Membership, StoreError>>]) -> Vec<usize> {
        conclude(&addresses(given), answers).unwrap().unwrap().contacts
    }

    fn error(given: &str, answers: &[Option<Result<Membership, StoreError>>]) -> StoreError {
        conclude(&addresses(given), answers).unwrap().unwrap_err()
    }

    #[test]
    fn a_list_is_taken_up_from_another_spelling_or_a_part_of_it() {
        assert_eq!(contacts("x:1 y:1", &[member(1, "b:1"), member(1, "a:1")]), [1, 0]);
        assert_eq!(contacts("x:1", &[member(1, "b:1")]), [1]);
        // Two spellings of one server.
        assert_eq!(contacts("x:1 y:1", &[member(1, "a:1"), member(1, "a:1")]), [0, 0]);
        // A server that is spelt as in the list need not be waited for, and need not answer.
        assert_eq!(contacts("a:1 b:1", &[member(1, "a:1"), None]), [0, 1]);
        assert_eq!(contacts("a:1 b:1", &[member(1, "a:1"), lost()]), [0, 1]);
    }

    #[test]
    fn what_cannot_be_settled_waits_or_fails() {
        assert!(conclude(&addresses("a:1"), &[None]).is_none());
        assert!(conclude(&addresses("x:1 y:1"), &[member(1, "a:1"), None]).is_none());
        assert!(conclude(&addresses("x:1 y:1"), &[lost(), None]).is_none());
        assert_eq!(error("x:1 y:1", &[member(1, "a:1"), lost()]).kind, ErrorKind::Unavailable);
        assert_eq!(error("a:1 b:1", &[lost(), lost()]).kind, ErrorKind::Unavailable);
        let denied = Some(Err(StoreError::new(ErrorKind::Denied, "no")));
        assert_eq!(error("a:1 b:1", &[lost(), denied.clone()]).kind, ErrorKind::Denied);
        assert_eq!(error("a:1 b:1", &[denied, member(1, "b:1")]).kind, ErrorKind::Denied);
    }

    #[test]
    fn servers_elsewhere_name_no_place_on_this_machine() {
        for name in ["unix:/run/agent", "127.0.0.1:22", "[::1]:22", "localhost:22"] {
            let names = ["a:1", name].map(str::to_owned);
            let answer = Membership::new(Members::new(1, names).unwrap(), "a:1").unwrap();
            let answer = [Some(Ok(answer))];
            let text = error("a:1", &answer).message;
            assert!(text.contains(name), "{text}");
            // If the client itself named a local server, others may be local too.
            assert!(conclude(&addresses("localhost:1"), &answer).unwrap().is_ok());
        }
    }

    #[test]
    fn servers_of_different_stores_are_no_store() {
        let text = error("x:1 y:1", &[member(1, "a:1"), member(2, "b:1")]).message;
        assert!(text.contains("x:1 has the members a:1,b:1 (version 1), y:1 has the members"), "{text}");
        let alone = |byte| Some(Ok(Membership::alone([byte; 16])));
        let text = error("x:1 y:1", &[alone(1), alone(2)]).message;
        assert!(text.contains("x:1 keeps a store by itself, y:1 keeps a store by itself"), "{text}");
        assert_eq!(contacts("x:1 y:1", &[alone(1), alone(1)]), [0, 0]);
    }
}
