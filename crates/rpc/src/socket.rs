//! Unix sockets of servers: the place of a user's own one, their creation, and the users admitted to them.
//!
//! Invariants: a socket is never more accessible than intended, not even for a moment; nothing but the socket of a
//! server that is gone is ever removed or replaced; and a socket answers from the moment that it has its name, so a
//! socket that does not answer belongs to a server that is gone.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, Escaped, StoreError};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, RenameFlags};

/// The mode of a socket that only its owner may use.
pub const SOCKET_MODE_DEFAULT: u32 = 0o600;

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// The number of times that a listener tries again when the name of its socket is taken or freed under it.
const ATTEMPTS_MAX: u32 = 8;
/// The longest time that one server of this user keeps another waiting while it replaces a dead socket.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// The name of the socket in its folder.
const OWN_SOCKET: &str = "server.sock";

/// The access to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// The mode of the file. Peers are not checked if it lets others than the owner in.
    pub mode: u32,
    /// The group of the file, instead of the process's own.
    pub group: Option<u32>,
}

impl Default for SocketAccess {
    fn default() -> Self {
        Self { mode: SOCKET_MODE_DEFAULT, group: None }
    }
}

impl SocketAccess {
    /// Returns whether a peer of this user is admitted. The mode of the file has allowed it to connect, but a socket
    /// meant for its owner alone must not become open to others because its mode was changed or its descriptor passed
    /// on.
    pub(crate) fn admits(&self, user: u32) -> bool {
        self.mode & 0o077 != 0 || is_self_or_root(user)
    }
}

/// Returns whether a user is the one that this process runs as, or root, who is not restricted anyway.
pub(crate) fn is_self_or_root(user: u32) -> bool {
    user == 0 || user == own_user()
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A socket's file, removed when this is dropped, unless something else has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }

    fn is(&self, metadata: &Metadata) -> bool {
        (self.device, self.inode) == (metadata.dev(), metadata.ino())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The socket is no longer listened on, so another server may be replacing it, which must not happen between the
        // check and the removal.
        let Ok(_lock) = Lock::take(&self.path) else { return };
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| self.is(&metadata)) {
            // No client can connect any more, whether the file is removed or not.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on a socket at a path that is free, or holds the socket of a server that is gone.
pub(crate) fn listen(path: &Path, access: SocketAccess) -> io::Result<(UnixListener, SocketFile)> {
    check_length(path)?;
    // The socket gets its name when it is complete: its mode is set, and it answers.
    let (listener, mut file) = bind_aside(path)?;
    if access.group.is_some() {
        let group = access.group.map(Gid::from_raw);
        rustix::fs::chownat(CWD, &file.path, None, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if access.mode != SOCKET_MODE_DEFAULT {
        fs::set_permissions(&file.path, fs::Permissions::from_mode(access.mode))?;
    }
    for _ in 0..ATTEMPTS_MAX {
        let moved = rustix::fs::renameat_with(CWD, &file.path, CWD, path, RenameFlags::NOREPLACE);
        let took = match moved {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => take_from_dead(&file.path, path)?,
            Err(error) => return Err(error.into()),
        };
        if took {
            file.path = path.to_owned();
            return Ok((listener, file));
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Checks that a server could listen on a socket at a path: that it is free, or the socket of a server that is gone.
pub(crate) fn check_free(path: &Path) -> io::Result<()> {
    check_length(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map(fs::metadata).transpose()?;
    match is_dead(path) {
        Ok(false) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether two paths name the same file of a folder, whether it is there or not.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let folder = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()
    };
    one == other
        || one.file_name() == other.file_name() && folder(one).is_some_and(|one| Some(one) == folder(other))
}

/// Checks that a socket can have a path, and be made beside it first.
fn check_length(path: &Path) -> io::Result<()> {
    let fits = |path: &Path| socket2::SockAddr::unix(path).is_ok();
    if fits(path) && fits(&name_aside(path, NEXT.load(Ordering::Relaxed))) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the path is too long for a socket; choose a shorter one",
    ))
}

/// Replaces a socket whose server is gone by the socket `aside`. Returns false if the name has been taken or freed
/// meanwhile.
fn take_from_dead(aside: &Path, path: &Path) -> io::Result<bool> {
    // Servers that are started together do this one after another; otherwise they would exchange each other's sockets.
    let _lock = Lock::take(path)?;
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let found = match fs::symlink_metadata(path) {
        Err(error) if gone(&error) => return Ok(false),
        found => found?,
    };
    match is_dead(path) {
        Err(error) if gone(&error) => return Ok(false),
        Err(error) => return Err(error),
        Ok(false) => return Err(io::ErrorKind::AddrInUse.into()),
        Ok(true) => {}
    }
    // Something else may have been placed there since. Removing it by its name could hit that; so the two names are
    // exchanged, and the displaced file is checked where nothing else touches it.
    let exchange = || rustix::fs::renameat_with(CWD, aside, CWD, path, RenameFlags::EXCHANGE);
    match exchange() {
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        done => done?,
    }
    let taken = fs::symlink_metadata(aside)?;
    if (taken.dev(), taken.ino()) != (found.dev(), found.ino()) {
        exchange()?;
        return Ok(false);
    }
    fs::remove_file(aside)?;
    Ok(true)
}

/// A lock on a name in a folder: a file beside it that exists for as long as the lock is held.
struct Lock {
    path: PathBuf,
    _file: fs::File,
}

impl Lock {
    fn take(path: &Path) -> io::Result<Lock> {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(".lock");
        let path = path.with_file_name(name);
        loop {
            let file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&path)?;
            let held = file.metadata()?;
            // In a folder that others write to, one of them could hold the lock for any length of time.
            let user = rustix::process::geteuid().as_raw();
            let since = Instant::now();
            while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                if error != rustix::io::Errno::WOULDBLOCK {
                    return Err(error.into());
                }
                if held.uid() != user || since.elapsed() > LOCK_WAIT_MAX {
                    let text = format!("another process holds {}; remove that file", Escaped::of(&path));
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
                std::thread::sleep(LOCK_RETRY);
            }
            // The previous holder has removed the file, so the lock on it is worthless.
            match fs::symlink_metadata(&path) {
                Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => {
                    return Ok(Lock { path, _file: file });
                }
                _ => {}
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the lock is released, so that the file removed cannot be held by another process.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns whether a path is a socket without a listener. Anything but a socket is an error.
fn is_dead(path: &Path) -> io::Result<bool> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if !kind.is_socket() {
        let what = match kind {
            kind if kind.is_dir() => "a folder",
            kind if kind.is_symlink() => "a symbolic link",
            kind if kind.is_file() => "an ordinary file",
            _ => "a special file",
        };
        let text = format!("there is {what} of that name; remove it, or listen on another address");
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    let probe = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // A listener whose queue is full would keep a blocking probe waiting.
    probe.set_nonblocking(true)?;
    match probe.connect(&socket2::SockAddr::unix(path)?) {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(error),
    }
}

/// The number of the next socket under a temporary name.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a temporary name beside `path`.
fn name_aside(path: &Path, number: u32) -> PathBuf {
    path.with_file_name(format!(".nacre-{}-{number}", std::process::id()))
}

/// Listens on a socket beside `path`, under a temporary name.
fn bind_aside(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    loop {
        let aside = name_aside(path, NEXT.fetch_add(1, Ordering::Relaxed));
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        // The file takes its mode from the socket when it is created: it is never open to others, whatever the umask.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(SOCKET_MODE_DEFAULT))?;
        match socket.bind(&socket2::SockAddr::unix(&aside)?) {
            // A process with the same number was killed between two steps in the past.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
            bound => bound?,
        }
        let file = SocketFile::at(&aside)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        return Ok((UnixListener::from(OwnedFd::from(socket)), file));
    }
}

/// A folder that may hold a user's sockets.
struct SocketFolder {
    /// A folder of the system, which must belong to the user; `None` if `folder` itself is checked.
    base: Option<PathBuf>,
    folder: PathBuf,
}

/// Returns the places where a user's sockets may be, in order.
fn places(runtime: Option<PathBuf>, system: &Path, temporary: &Path, user: u32) -> Vec<SocketFolder> {
    let below = |base: PathBuf| SocketFolder { folder: base.join("nacre"), base: Some(base) };
    let mut places: Vec<SocketFolder> =
        runtime.filter(|runtime| runtime.is_absolute()).into_iter().map(below).collect();
    places.push(below(system.join(user.to_string())));
    places.push(SocketFolder { base: None, folder: temporary.join(format!("nacre-{user}")) });
    places
}

fn own_places() -> Vec<SocketFolder> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    places(runtime, Path::new("/run/user"), Path::new("/tmp"), own_user())
}

/// Checks that a path is a folder, belongs to the user, and grants others no forbidden rights.
fn check_folder(folder: &Path, user: u32, forbidden: u32) -> Result<(), String> {
    let metadata = fs::symlink_metadata(folder).map_err(|error| error.to_string())?;
    let mode = metadata.mode() & 0o777;
    match () {
        _ if !metadata.is_dir() => Err("it is not a folder".to_owned()),
        _ if metadata.uid() != user => Err(format!("it belongs to user {}", metadata.uid())),
        _ if mode & forbidden != 0 => Err(format!("others have rights in it (mode {mode:03o})")),
        _ => Ok(()),
    }
}

/// Returns the path of the socket on which a user's own server listens: `$XDG_RUNTIME_DIR/nacre/server.sock` if that
/// folder exists and is the user's, otherwise the same below `/run/user/UID`, otherwise `/tmp/nacre-UID/server.sock`.
/// The last folder is created, with mode 0700.
///
/// # Errors
///
/// `Denied` if the folder exists but belongs to another user or lets others in; `Io` if it cannot be created.
pub fn own_socket_for_server() -> Result<PathBuf, StoreError> {
    create_socket_folder(&own_places(), own_user())
}

fn create_socket_folder(places: &[SocketFolder], user: u32) -> Result<PathBuf, StoreError> {
    let usable = |candidate: &&SocketFolder| {
        candidate.base.as_ref().is_none_or(|base| check_folder(base, user, 0o022).is_ok())
    };
    let Some(SocketFolder { folder, .. }) = places.iter().find(usable) else {
        return Err(StoreError::new(ErrorKind::Invalid, "there is no place for the socket"));
    };
    let shown = Escaped::of(folder);
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let text = format!("cannot create the folder {shown} for the server's socket: {error}");
            return Err(StoreError::new(ErrorKind::Io, text));
        }
        _ => {}
    }
    check_folder(folder, user, 0o077).map_err(|why| {
        let text = format!(
            "the folder {shown}, for the server's socket, is not safe: {why}; remove it, or listen on \
             another path with --listen unix:PATH"
        );
        StoreError::new(ErrorKind::Denied, text)
    })?;
    Ok(folder.join(OWN_SOCKET))
}

/// Returns the path of the socket of this user's own server: of the places where it may listen, the first with a socket
/// in a folder that is the user's alone; if there is none, the place where the server would listen if it were started
/// now.
pub fn own_socket() -> PathBuf {
    find_place(&own_places(), own_user())
}

fn find_place(places: &[SocketFolder], user: u32) -> PathBuf {
    let there = places.iter().find(|SocketFolder { folder, .. }| {
        check_folder(folder, user, 0o022).is_ok()
            && fs::symlink_metadata(folder.join(OWN_SOCKET)).is_ok_and(|found| found.file_type().is_socket())
    });
    let usable = |candidate: &&SocketFolder| {
        candidate.base.as_ref().is_none_or(|base| check_folder(base, user, 0o022).is_ok())
    };
    let candidate = there.or_else(|| places.iter().find(usable)).or(places.last());
    candidate.map_or_else(|| PathBuf::from(OWN_SOCKET), |candidate| candidate.folder.join(OWN_SOCKET))
}

/// Returns the number of a user, given by name or number.
pub fn user_number(text: &str) -> Option<u32> {
    number(text, Path::new("/etc/passwd"))
}

/// Returns the number of a group, given by name or number.
pub fn group_number(text: &str) -> Option<u32> {
    number(text, Path::new("/etc/group"))
}

/// Looks a name up in a file whose lines are `NAME:…:NUMBER:…`.
fn number(text: &str, file: &Path) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let lines = fs::read_to_string(file).ok()?;
    let mut fields = lines.lines().map(|line| line.split(':'));
    fields.find_map(|mut line| (line.next()? == text).then(|| line.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_socket_has_its_mode_and_goes_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for access in [0o600, 0o660, 0o666].map(|mode| SocketAccess { mode, group: None }) {
            let (listener, file) = listen(&path, access).unwrap();
            assert_eq!(mode(&path), access.mode);
            assert_eq!(names(folder.path()), ["s"], "nothing is left beside it");
            drop(listener);
            drop(file);
            assert!(!path.exists());
        }
        // The socket of another server that has taken its place stays.
        let (listener, file) = listen(&path, SocketAccess::default()).unwrap();
        drop(listener);
        let (second, _second_file) = listen(&path, SocketAccess::default()).unwrap();
        drop(file);
        UnixStream::connect(&path).unwrap();
        drop(second);
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let access = SocketAccess::default();
        let (alive, file) = listen(&path, access).unwrap();
        assert_eq!(listen(&path, access).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(check_free(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        // Its server is killed: the file is not removed.
        std::mem::forget(file);
        drop(alive);
        check_free(&path).unwrap();
        let (_again, _file) = listen(&path, access).unwrap();
        UnixStream::connect(&path).unwrap();

        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let to_dead = folder.path().join("to-dead");
        drop(UnixListener::bind(folder.path().join("dead")).unwrap());
        std::os::unix::fs::symlink(folder.path().join("dead"), &to_dead).unwrap();
        let inner = folder.path().join("folder");
        fs::create_dir(&inner).unwrap();
        let before = names(folder.path());
        for (path, what) in [
            (&victim, "an ordinary file"),
            (&link, "a symbolic link"),
            (&to_dead, "a symbolic link"),
            (&inner, "a folder"),
        ] {
            for error in [listen(path, access).unwrap_err(), check_free(path).unwrap_err()] {
                assert!(error.to_string().contains(what), "{error}");
            }
        }
        check_free(&folder.path().join("free")).unwrap();
        assert!(check_free(&folder.path().join("no/folder")).is_err());
        let long = folder.path().join("x".repeat(120));
        for error in [listen(&long, access).unwrap_err(), check_free(&long).unwrap_err()] {
            assert!(error.to_string().contains("too long"), "{error}");
        }
        assert_eq!(names(folder.path()), before);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    /// A server that stops while another takes its place does not remove the other's socket.
    #[test]
    fn the_socket_of_a_successor_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut server = listen(&path, SocketAccess::default()).unwrap();
        for _ in 0..500 {
            let (listener, file) = server;
            server = std::thread::scope(|scope| {
                let stopping = scope.spawn(move || {
                    drop(listener);
                    drop(file);
                });
                let next = loop {
                    match listen(&path, SocketAccess::default()) {
                        Ok(next) => break next,
                        // The other one still listens.
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrInUse),
                    }
                };
                stopping.join().unwrap();
                next
            });
            UnixStream::connect(&path).unwrap();
        }
    }

    /// Of many servers that try to replace a socket whose server was killed, exactly one succeeds and answers.
    #[test]
    fn one_of_many_takes_the_place_of_a_dead_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for _ in 0..50 {
            drop(UnixListener::bind(&path).unwrap());
            let won: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..8).map(|_| scope.spawn(|| listen(&path, SocketAccess::default()))).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
            });
            assert_eq!(won.len(), 1);
            UnixStream::connect(&path).unwrap();
            drop(won);
            assert_eq!(names(folder.path()), [] as [&str; 0]);
        }
    }

    #[test]
    fn a_users_own_socket_is_in_a_folder_that_is_the_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let user = own_user();
        for name in ["runtime", "system", "tmp"] {
            fs::create_dir(at(name)).unwrap();
        }
        let all = |runtime: Option<PathBuf>| places(runtime, &at("system"), &at("tmp"), user);
        // If the user has no runtime folder, a folder among the temporary ones is used.
        let last = at(&format!("tmp/nacre-{user}")).join(OWN_SOCKET);
        assert_eq!(create_socket_folder(&all(None), user).unwrap(), last);
        assert_eq!(mode(last.parent().unwrap()), 0o700);
        assert_eq!(create_socket_folder(&all(Some("relative".into())), user).unwrap(), last);
        let first = at("runtime/nacre").join(OWN_SOCKET);
        assert_eq!(create_socket_folder(&all(Some(at("runtime"))), user).unwrap(), first);
        assert_eq!(mode(first.parent().unwrap()), 0o700);
        // Clients of another session find the server in its place.
        assert_eq!(find_place(&all(Some(at("runtime"))), user), first);
        let (_listener, _file) = listen(&last, SocketAccess::default()).unwrap();
        assert_eq!(find_place(&all(Some(at("runtime"))), user), last);
        // A runtime folder that others may change is not used.
        fs::set_permissions(at("runtime"), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(create_socket_folder(&all(Some(at("runtime"))), user).unwrap(), last);
    }

    #[test]
    fn a_folder_that_somebody_else_made_first_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let user = own_user();
        let all = places(None, Path::new("/nowhere"), folder.path(), user);
        let squatted = folder.path().join(format!("nacre-{user}"));
        // The folder belongs to another user, from this user's point of view.
        fs::create_dir(&squatted).unwrap();
        fs::set_permissions(&squatted, fs::Permissions::from_mode(0o700)).unwrap();
        let others = [SocketFolder { base: None, folder: squatted.clone() }];
        let error = create_socket_folder(&others, user + 1).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied);
        assert!(error.message.contains(&format!("belongs to user {user}")), "{error}");
        // The folder is the user's own, but open to others.
        fs::set_permissions(&squatted, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(create_socket_folder(&all, user).unwrap_err().message.contains("mode 755"));
        // A link to a folder that would be accepted.
        fs::remove_dir(&squatted).unwrap();
        let target = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(target.path(), &squatted).unwrap();
        assert!(create_socket_folder(&all, user).unwrap_err().message.contains("not a folder"));
    }

    #[test]
    fn users_and_groups_have_names_and_numbers() {
        assert_eq!(user_number("root"), Some(0));
        assert_eq!(user_number("4711"), Some(4711));
        assert_eq!(group_number("root"), Some(0));
        assert_eq!(group_number("no such group"), None);
    }
}
