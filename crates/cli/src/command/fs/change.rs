//! `nacre fs mkdir`, `mv`, `rm`, `ln`, `chmod` and `chown`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use nacre::fs::{Attributes, Creation, Error, Ino, InodeKind, Layout, Listed, SetAttributes};
use nacre_quantity::Escaped;

use super::{Path, Tree, failure, masked};
use crate::failure::Failure;
use crate::quantity::parse_size;

/// Create directories
#[derive(clap::Args, Debug)]
pub struct MkdirArgs {
    /// The directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Create missing parent directories too, and ignore existing directories
    #[arg(long, short)]
    parents: bool,
    /// Permissions, in octal [default: 777 minus the umask]
    #[arg(long, value_name = "MODE", value_parser = octal)]
    mode: Option<u32>,
    /// Stripe length of files in it [default: that of the parent directory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    stripe: Option<u64>,
    /// Number of objects that files in it are striped over [default: that of the parent directory]
    #[arg(long, value_name = "COUNT", value_parser = nacre_quantity::count_parser::<u32>(1..=1024))]
    width: Option<u32>,
    /// Maximum length of an object of a file [default: that of the parent directory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    object_size: Option<u64>,
}

/// Rename, or move to another directory
#[derive(clap::Args, Debug)]
pub struct MvArgs {
    /// The paths to move, and last the new path or the directory to move them into
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    paths: Vec<OsString>,
    /// Fail if the new name exists
    #[arg(long, short = 'n')]
    keep: bool,
}

/// Remove files and links, or whole directories
#[derive(clap::Args, Debug)]
pub struct RmArgs {
    /// The paths to remove
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Remove directories with everything below them
    #[arg(long, short)]
    recursive: bool,
    /// Remove empty directories
    #[arg(long, short)]
    directory: bool,
    /// Ignore missing paths
    #[arg(long, short)]
    force: bool,
}

/// Create a link
#[derive(clap::Args, Debug)]
pub struct LnArgs {
    /// The target of the link
    target: OsString,
    /// The link
    path: OsString,
    /// Create a symbolic link
    #[arg(long, short)]
    symbolic: bool,
}

/// Change permissions
#[derive(clap::Args, Debug)]
pub struct ChmodArgs {
    /// The permissions, in octal, or changes such as u+w,go-rwx
    #[arg(allow_hyphen_values = true)]
    mode: String,
    /// The paths to change
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Change everything below directories too
    #[arg(long, short = 'R')]
    recursive: bool,
}

/// Change owner and group
#[derive(clap::Args, Debug)]
pub struct ChownArgs {
    /// The owner, by name or number; with a colon, the group
    #[arg(value_name = "OWNER:GROUP")]
    owner: String,
    /// The paths to change
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Change everything below directories too
    #[arg(long, short = 'R')]
    recursive: bool,
}

pub(super) fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("permissions are up to four octal digits".to_owned()),
    }
}

/// Runs `nacre fs mkdir`.
pub async fn mkdir(tree: &Tree, args: MkdirArgs) -> Result<(), Failure> {
    let mode = args.mode.unwrap_or_else(|| masked(0o777));
    for path in args.paths.iter().cloned().map(Path::from) {
        if !args.parents {
            let (parent, name) = tree.parent(&path, "create").await?;
            make(tree, &path, &parent, &name, mode, &args).await?;
            continue;
        }
        let mut here = tree.find(&Path("/".into()), true, "create").await?;
        let mut so_far = Path(if path.bytes().starts_with(b"/") { "/".into() } else { OsString::new() });
        let names = path.bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let names: Vec<&[u8]> = names.collect();
        for (index, name) in names.iter().enumerate() {
            so_far = so_far.join(name);
            let found = match tree.rank.resolve_from(&tree.user, here.ino, name, true).await {
                Err(Error::NotFound) => {
                    let is_last = index + 1 == names.len();
                    let mode = if is_last { mode } else { masked(0o777) | 0o300 };
                    match make(tree, &so_far, &here, name, mode, &args).await {
                        Ok(created) => Ok(created),
                        // Perhaps somebody else was faster.
                        Err(failure) => {
                            let now = tree.rank.resolve_from(&tree.user, here.ino, name, true).await;
                            Ok(now.map_err(|_| failure)?)
                        }
                    }
                }
                found => found,
            };
            here = found.map_err(|error| failure(error, format_args!("cannot create {so_far}")))?;
        }
        if here.kind != InodeKind::Directory {
            return Err(failure(Error::Exists, format_args!("cannot create {path}")));
        }
    }
    Ok(())
}

async fn make(
    tree: &Tree,
    path: &Path,
    parent: &Attributes,
    name: &[u8],
    mode: u32,
    args: &MkdirArgs,
) -> Result<Attributes, Failure> {
    let attempted = format!("cannot create {path}");
    let above = parent.layout;
    let layout = Layout {
        unit_bytes: match args.stripe {
            Some(bytes) => u32::try_from(bytes).unwrap_or(u32::MAX),
            None => above.unit_bytes,
        },
        width: args.width.unwrap_or(above.width),
        object_bytes: args.object_size.unwrap_or(above.object_bytes),
    };
    if !layout.is_sound() {
        let text =
            "stripes are of 4 KiB to 16 MiB, over 1 to 1024 objects, and objects of a multiple of them";
        return Err(Failure::Usage(format!("{attempted}: {text}")));
    }
    let creation = Creation { layout: Some(layout), ..Creation::new(InodeKind::Directory, mode) };
    let created = tree.rank.create(&tree.user, parent.ino, name, creation).await;
    created.map_err(|error| failure(error, attempted))
}

/// Runs `nacre fs mv`.
pub async fn mv(tree: &Tree, args: MvArgs) -> Result<(), Failure> {
    let mut paths: Vec<Path> = args.paths.into_iter().map(Path::from).collect();
    let Some(target) = paths.pop() else { return Ok(()) };
    let into = match tree.rank.resolve(&tree.user, target.bytes(), true).await {
        Ok(found) if found.kind == InodeKind::Directory => Some(found),
        _ if paths.len() > 1 => {
            return Err(failure(Error::NotDirectory, format_args!("cannot move to {target}")));
        }
        _ => None,
    };
    for path in paths {
        let (from, name) = tree.parent(&path, "move").await?;
        let is_directory = async || match tree.rank.lookup(&tree.user, from.ino, &name).await {
            Ok(found) => found.kind == InodeKind::Directory,
            // The rename says what is wrong.
            Err(_) => true,
        };
        if path.bytes().ends_with(b"/") && !is_directory().await {
            return Err(failure(Error::NotDirectory, format_args!("cannot move {path}")));
        }
        let (to, to_name) = match &into {
            Some(directory) => (directory.clone(), name.clone()),
            None if is_directory().await => tree.parent(&target, "move to").await?,
            None => tree.parent_of_file(&target, "move to").await?,
        };
        let moved = tree.rank.rename(&tree.user, (from.ino, &name), (to.ino, &to_name), args.keep).await;
        moved.map_err(|error| failure(error, format_args!("cannot move {path} to {target}")))?;
    }
    Ok(())
}

/// Runs `nacre fs rm`.
pub async fn rm(tree: &Tree, args: RmArgs) -> Result<(), Failure> {
    for path in args.paths.iter().cloned().map(Path::from) {
        match remove(tree, &args, &path).await {
            Err((Error::NotFound, _)) if args.force => {}
            Err((error, path)) => {
                let hint = match error {
                    Error::IsDirectory => "; -r removes it with everything below it",
                    _ => "",
                };
                return Err(match failure(error, format_args!("cannot remove {path}")) {
                    Failure::Failed(text) => Failure::Failed(format!("{text}{hint}")),
                    other => other,
                });
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

async fn remove(tree: &Tree, args: &RmArgs, path: &Path) -> Result<(), (Error, Path)> {
    let at = |path: &Path| {
        let path = path.clone();
        move |error| (error, path)
    };
    let (parent, name) = tree.rank.resolve_parent(&tree.user, path.bytes()).await.map_err(at(path))?;
    if path.bytes().ends_with(b"/") {
        let found = tree.rank.lookup(&tree.user, parent.ino, &name).await.map_err(at(path))?;
        if found.kind != InodeKind::Directory {
            return Err((Error::NotDirectory, path.clone()));
        }
    }
    match tree.rank.unlink(&tree.user, parent.ino, &name).await {
        Err(Error::IsDirectory) if args.recursive || args.directory => {}
        done => return done.map_err(at(path)),
    }
    if !args.recursive {
        return tree.rank.rmdir(&tree.user, parent.ino, &name).await.map_err(at(path));
    }
    // Depth first; a directory is looked at again when what is below it is gone. What others remove meanwhile is no
    // failure, what they add is removed too. Each has the length that the path above it has in `here`: paths of their own
    // would take memory by the square of the depth.
    let mut here = path.clone();
    let mut waiting: Vec<(Option<usize>, Ino, Bytes)> = vec![(None, parent.ino, name)];
    while let Some((above, parent, name)) = waiting.last().cloned() {
        here = match above {
            None => path.clone(),
            Some(above) => here.up_to(above).join(&name),
        };
        match tree.rank.rmdir(&tree.user, parent, &name).await {
            Ok(()) | Err(Error::NotFound) => {
                waiting.pop();
                continue;
            }
            Err(Error::NotEmpty) => {}
            Err(error) => return Err((error, here)),
        }
        let directory = match tree.rank.lookup(&tree.user, parent, &name).await {
            Err(Error::NotFound) => continue,
            found => found.map_err(at(&here))?,
        };
        let page = tree.rank.readdir(&tree.user, directory.ino, b"", 1024, false).await.map_err(at(&here))?;
        for entry in page.entries {
            if entry.kind == InodeKind::Directory {
                waiting.push((Some(here.bytes().len()), directory.ino, entry.name));
                continue;
            }
            match tree.rank.unlink(&tree.user, directory.ino, &entry.name).await {
                Ok(()) | Err(Error::NotFound) => {}
                Err(error) => return Err((error, here.join(&entry.name))),
            }
        }
    }
    Ok(())
}

/// Runs `nacre fs ln`.
pub async fn ln(tree: &Tree, args: LnArgs) -> Result<(), Failure> {
    let (mut path, target) = (Path(args.path), Path(args.target));
    if let Ok(found) = tree.rank.resolve(&tree.user, path.bytes(), true).await
        && found.kind == InodeKind::Directory
    {
        path = path.join(&target.name().unwrap_or_default());
    }
    let (parent, name) = tree.parent_of_file(&path, "create").await?;
    let attempted = format!("cannot create {path}");
    let created = if args.symbolic {
        let creation = Creation::symlink(target.0.into_vec());
        tree.rank.create(&tree.user, parent.ino, &name, creation).await
    } else {
        let found = tree.find(&target, false, "make a link to").await?;
        if found.kind == InodeKind::Directory {
            let text =
                format!("{attempted}: {target} is a directory, to which only symbolic links can point");
            return Err(Failure::Failed(text));
        }
        tree.rank.link(&tree.user, found.ino, parent.ino, &name).await
    };
    created.map(|_| ()).map_err(|error| failure(error, attempted))
}

/// Runs `nacre fs chmod`.
pub async fn chmod(tree: &Tree, args: ChmodArgs) -> Result<(), Failure> {
    if changed_mode(&args.mode, 0, false).is_none() {
        let text =
            format!("\"{}\" is neither octal digits nor changes such as u+w,go-rwx", Escaped::of(&args.mode));
        return Err(Failure::Usage(text));
    }
    for path in args.paths.into_iter().map(Path::from) {
        each(tree, path, args.recursive, true, async |_, found| {
            let mode = changed_mode(&args.mode, found.mode, found.kind == InodeKind::Directory);
            let set = SetAttributes { mode, ..SetAttributes::default() };
            tree.rank.set_attributes(&tree.user, found.ino, &set).await.map(|_| ())
        })
        .await?;
    }
    Ok(())
}

/// Runs `nacre fs chown`.
pub async fn chown(tree: &Tree, args: ChownArgs) -> Result<(), Failure> {
    let (owner, group) = args.owner.split_once(':').unwrap_or((&args.owner, ""));
    let uid = match (owner, owner.parse()) {
        ("", _) => None,
        (_, Ok(uid)) => Some(uid),
        _ => match nix::unistd::User::from_name(owner) {
            Ok(Some(user)) => Some(user.uid.as_raw()),
            _ => return Err(Failure::Usage(format!("there is no user \"{}\"", Escaped::of(owner)))),
        },
    };
    let gid = match (group, group.parse()) {
        ("", _) => None,
        (_, Ok(gid)) => Some(gid),
        _ => match nix::unistd::Group::from_name(group) {
            Ok(Some(group)) => Some(group.gid.as_raw()),
            _ => return Err(Failure::Usage(format!("there is no group \"{}\"", Escaped::of(group)))),
        },
    };
    let set = SetAttributes { uid, gid, ..SetAttributes::default() };
    for path in args.paths.into_iter().map(Path::from) {
        each(tree, path, args.recursive, !args.recursive, async |_, found| {
            tree.rank.set_attributes(&tree.user, found.ino, &set).await.map(|_| ())
        })
        .await?;
    }
    Ok(())
}

/// Does something to what a path leads to, and to everything below it if `recursive`. Symbolic links below are left out.
async fn each(
    tree: &Tree,
    path: Path,
    recursive: bool,
    follow: bool,
    mut change: impl AsyncFnMut(&Path, &Attributes) -> Result<(), Error>,
) -> Result<(), Failure> {
    let found = tree.find(&path, follow, "change").await?;
    let mut waiting = vec![(path, found)];
    while let Some((path, found)) = waiting.pop() {
        let mut below = Vec::new();
        if recursive && found.kind == InodeKind::Directory {
            let entry = async |listed: Listed| {
                if let Some(attributes) = listed.attributes
                    && attributes.kind != InodeKind::Symlink
                {
                    below.push((path.join(&listed.name), attributes));
                }
                Ok(())
            };
            tree.list(&found, &path, true, entry).await?;
        }
        let changed = change(&path, &found).await;
        changed.map_err(|error| failure(error, format_args!("cannot change {path}")))?;
        waiting.extend(below);
    }
    Ok(())
}

/// Returns permissions after a change of them, as `chmod` understands it; `None` if it cannot be read.
fn changed_mode(text: &str, mode: u32, is_directory: bool) -> Option<u32> {
    if let Ok(mode) = octal(text) {
        return Some(mode);
    }
    let mut mode = mode;
    for clause in text.split(',') {
        let operator = clause.find(['+', '-', '='])?;
        let (who, rest) = clause.split_at(operator);
        let mut classes = 0;
        for class in who.chars() {
            classes |= match class {
                'u' => 0o4700,
                'g' => 0o2070,
                'o' => 0o1007,
                'a' => 0o7777,
                _ => return None,
            };
        }
        if classes == 0 {
            classes = 0o7777;
        }
        let mut bits = 0;
        for bit in rest[1..].chars() {
            bits |= match bit {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' if is_directory || mode & 0o111 != 0 => 0o111,
                'X' => 0,
                's' => 0o6000,
                't' => 0o1000,
                _ => return None,
            };
        }
        let bits = bits & (classes | if who.is_empty() { 0o1000 } else { 0 });
        match rest.as_bytes()[0] {
            b'+' => mode |= bits,
            b'-' => mode &= !bits,
            _ => mode = mode & !classes | bits,
        }
    }
    Some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_change_as_chmod_changes_them() {
        let change = |text, mode| changed_mode(text, mode, false);
        assert_eq!(change("640", 0o777), Some(0o640));
        assert_eq!(change("u+x,go-rwx", 0o644), Some(0o700));
        assert_eq!(change("a=r", 0o777), Some(0o444));
        assert_eq!(change("+x", 0o644), Some(0o755));
        assert_eq!(change("u+s", 0o755), Some(0o4755));
        assert_eq!(change("g=u", 0o755), None);
        assert_eq!(change("8", 0), None);
        assert_eq!(changed_mode("a+X", 0o644, true), Some(0o755));
        assert_eq!(changed_mode("a+X", 0o644, false), Some(0o644));
    }
}
