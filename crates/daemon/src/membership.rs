//! The servers that keep a store together: the list in the options, the list stored with the store, and which of the
//! two holds.
//!
//! A store that was started with a list of members has it in a file beside its log, so that it is never served by
//! mistake under another list, which would place its objects elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{ErrorKind, Escaped, ObjectStore, StoreError};
use nacre_remote::{Members, Membership};
use nacre_rpc::Address;
use xxhash_rust::xxh3::xxh3_64;

use crate::options::ServerOptions;
use crate::served_store::ServedStore;

/// The name of the file.
pub const MEMBERS_FILE: &str = "nacre-members";
/// The first line of the file.
const HEAD: &str = "nacre members, format 1";
/// The beginning of the last line of the file.
const SUM: &str = "xxh3 ";

/// Returns the server's place among those that keep its store together. A new list is saved with the store if that is
/// in a folder.
pub(crate) fn settle(
    options: &ServerOptions,
    listen: &[Address],
    kept: Option<&ServedStore>,
) -> Result<Membership, StoreError> {
    let configured = configured(options, listen)?;
    let Some((store, folder)) = kept.and_then(|kept| Some((kept, kept.folder()?))) else {
        return match (configured, kept) {
            (Some(configured), _) => Ok(configured),
            (None, Some(kept @ ServedStore::Other(_))) => Ok(Membership::alone(kept.identity()?)),
            (None, _) => Ok(Membership::alone(random_identity()?)),
        };
    };
    let path = folder.join(MEMBERS_FILE);
    let kept = load(&path)?;
    let configured = match (configured, kept) {
        (None, None) => return Ok(Membership::alone(store.identity()?)),
        (None, Some(kept)) => return Ok(kept),
        (Some(configured), None) => configured,
        (Some(configured), Some(kept))
            if configured.members() == kept.members() && configured.own() == kept.own() =>
        {
            return Ok(kept);
        }
        (Some(configured), Some(kept)) if configured.members().version() <= kept.members().version() => {
            let text = format!(
                "the store in {} was started as member {} of {} before, and now as member {} of {}; if the list is meant \
                 to change, give the new one a version above {} with --members-version, on all servers",
                Escaped::of(folder),
                kept.name(),
                kept.members(),
                configured.name(),
                configured.members(),
                kept.members().version()
            );
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        (Some(configured), Some(_)) => configured,
    };
    save(folder, &path, &configured).map_err(|error| {
        StoreError::new(ErrorKind::Io, format!("cannot write {}: {error}", Escaped::of(&path)))
    })?;
    warn_of_strays(&configured, store)?;
    Ok(configured)
}

/// Returns the place that the options specify, if they do.
fn configured(options: &ServerOptions, listen: &[Address]) -> Result<Option<Membership>, StoreError> {
    let invalid = |text: String| StoreError::new(ErrorKind::Invalid, text);
    if options.members.is_empty() {
        return match &options.member {
            None => Ok(None),
            Some(member) => {
                Err(invalid(format!("member {member} of which list? name all servers with --members")))
            }
        };
    }
    let normal = |text: &String| match text.parse()? {
        Address::Unix(path) if path.is_relative() => Err(invalid(format!(
            "member {}: clients in other folders would look elsewhere; write the whole path",
            Escaped::of(text)
        ))),
        // As it is, and not as it is printed: it is compared, hashed, and read as an address again.
        address => name_of(&address).ok_or_else(|| invalid(format!("member {address} is not UTF-8"))),
    };
    let names = options.members.iter().map(normal).collect::<Result<Vec<String>, _>>()?;
    let members = Members::new(options.members_version, names)?;
    let own = match &options.member {
        Some(member) => normal(member)?,
        None => {
            let mut own = listen.iter().filter_map(name_of).filter(|name| members.position(name).is_some());
            match (own.next(), own.next()) {
                (Some(own), None) => own,
                _ => {
                    return Err(invalid(format!("say with --member which of {members} this server is")));
                }
            }
        }
    };
    let none = || invalid(format!("member {own} is not among {members}"));
    Membership::new(members.clone(), &own).ok_or_else(none).map(Some)
}

/// Returns an address as the name of a member, which all others are told; `None` if it is a path that is not UTF-8.
fn name_of(address: &Address) -> Option<String> {
    address.to_os_string().into_string().ok()
}

fn load(path: &Path) -> Result<Option<Membership>, StoreError> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(StoreError::new(
                ErrorKind::Io,
                format!("cannot read {}: {error}", Escaped::of(path)),
            ));
        }
        Ok(text) => text,
    };
    match decode(&text) {
        Some(membership) => Ok(Some(membership)),
        None => {
            let text = format!(
                "{} is damaged, or of a newer format; if you are sure which members the store has, remove the file and \
                 name them with --members",
                Escaped::of(path)
            );
            Err(StoreError::new(ErrorKind::Corrupt, text))
        }
    }
}

fn save(folder: &Path, path: &Path, membership: &Membership) -> io::Result<()> {
    let aside: PathBuf = folder.join(format!("{MEMBERS_FILE}.tmp"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    file.write_all(encode(membership).as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    File::open(folder)?.sync_all()
}

/// Encodes the file: a line each for its format, the version, every member and this one, and the XXH3-64 of all of
/// these.
fn encode(membership: &Membership) -> String {
    let members = membership.members();
    let mut text = format!("{HEAD}\nversion {}\n", members.version());
    for name in members.names() {
        text.push_str(&format!("member {name}\n"));
    }
    text.push_str(&format!("own {}\n", membership.name()));
    let sum = xxh3_64(text.as_bytes());
    text.push_str(&format!("{SUM}{sum:016x}\n"));
    text
}

fn decode(text: &str) -> Option<Membership> {
    let (text, sum) = text.strip_suffix('\n')?.rsplit_once(SUM)?;
    if sum != format!("{:016x}", xxh3_64(text.as_bytes())) {
        return None;
    }
    let mut lines = text.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let version = lines.next()?.strip_prefix("version ")?.parse().ok()?;
    let mut names = Vec::new();
    let own = loop {
        let line = lines.next()?;
        match line.strip_prefix("member ") {
            Some(name) => names.push(name.to_owned()),
            None => break line.strip_prefix("own ")?,
        }
    };
    Membership::new(Members::new(version, names).ok()?, own)
}

/// Warns of the objects of the store that are no longer found, because by the new list they belong to other members.
fn warn_of_strays(membership: &Membership, store: &ServedStore) -> Result<(), StoreError> {
    let (mut strays, mut last) = (0u64, None);
    loop {
        // The index is in memory, so a page is available at once.
        let page = futures::executor::block_on(store.list(last.as_ref(), PAGE_ENTRIES_MAX))?;
        strays += page.iter().filter(|object| !membership.keeps(object)).count() as u64;
        match page.into_iter().next_back() {
            Some(object) => last = Some(object),
            None => break,
        }
    }
    if strays > 0 {
        tracing::warn!(
            "{strays} objects of this store belong to other members by the list {}, and are not found there; copy them \
             from the old list to a new store with nacre copy-objects",
            membership.members()
        );
    }
    Ok(())
}

fn random_identity() -> Result<[u8; 16], StoreError> {
    let mut identity = [0; 16];
    let failed = |error: io::Error| {
        StoreError::new(ErrorKind::Io, format!("the system gives no random numbers: {error}"))
    };
    io::Read::read_exact(&mut File::open("/dev/urandom").map_err(failed)?, &mut identity).map_err(failed)?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership() -> Membership {
        let names = ["a:6470", "b:6470"].map(str::to_owned);
        Membership::new(Members::new(3, names).unwrap(), "b:6470").unwrap()
    }

    #[test]
    fn the_file_is_pinned_and_damage_is_noticed() {
        let text = encode(&membership());
        assert_eq!(text, include_str!("../tests/golden/nacre-members"));
        let again = decode(&text).unwrap();
        assert_eq!((again.members(), again.own()), (membership().members(), 1));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(decode(&String::from_utf8(bytes).unwrap()).is_none(), "byte {at}");
        }
        for end in 0..text.len() {
            assert!(decode(&text[..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn a_server_knows_itself_by_where_it_listens_or_is_told() {
        let options = |members: &[&str], member: Option<&str>| ServerOptions {
            members: members.iter().map(|name| name.to_string()).collect(),
            member: member.map(str::to_owned),
            ..Default::default()
        };
        let listen: Vec<Address> = vec!["A:6470".parse().unwrap(), "unix:/x".parse().unwrap()];
        let name = |options: &ServerOptions| {
            configured(options, &listen).map(|configured| configured.unwrap().name().to_owned())
        };
        assert_eq!(name(&options(&["b", "a:6470"], None)).unwrap(), "a:6470");
        assert_eq!(name(&options(&["b", "a"], Some("B"))).unwrap(), "b:6470");
        // The name is the path itself, as all servers of the store know it.
        assert_eq!(name(&options(&["b", "unix:/a\\b"], Some("unix:/a\\b"))).unwrap(), "unix:/a\\b");
        assert!(configured(&options(&[], None), &listen).unwrap().is_none());
        for (members, member, part) in [
            (&["b", "c"][..], None, "--member"),
            (&["a", "unix:/x"], None, "--member"),
            (&["b"], Some("c"), "not among"),
            (&[], Some("c"), "--members"),
            (&["b", "B:6470"], Some("b"), "named twice"),
            (&["b:x"], Some("b"), "port"),
            (&["unix:x"], Some("unix:x"), "whole path"),
        ] {
            let error = configured(&options(members, member), &listen).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(part), "{error}");
        }
    }
}
