//! The model of the namespace: a tree in memory, in which every call is one step.

use std::collections::BTreeMap;

use nacre_meta::Error;

/// A call, with directories named by the numbers of their inodes.
#[derive(Clone, Debug)]
pub enum Call {
    Create(u64, String),
    Mkdir(u64, String),
    Unlink(u64, String),
    Rmdir(u64, String),
    Link(u64, u64, String),
    Rename(u64, String, u64, String),
    Put(u64, String),
    Chmod(u64, u32),
    Lookup(u64, String),
}

/// The result of a call: nothing, or the number of an inode.
pub type Outcome = Result<Option<u64>, Error>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub content: String,
    /// The entries, if it is a directory.
    pub entries: Option<BTreeMap<String, u64>>,
}

/// A tree.
#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: BTreeMap<u64, Node>,
    /// Files whose last links were removed: one that is being removed can still be linked by its number.
    pub gone: BTreeMap<u64, Node>,
    next: u64,
}

/// The visible state of a tree: of each path the kind, the permissions, the content, the number of links, and the first path
/// of the same inode.
pub type Shape = BTreeMap<String, (bool, u32, String, usize, String)>;

impl Tree {
    pub fn new(nodes: BTreeMap<u64, Node>) -> Tree {
        // Inodes that the model makes have numbers of their own.
        Tree { nodes, gone: BTreeMap::new(), next: 1 << 60 }
    }

    fn directory(&self, ino: u64) -> Result<&BTreeMap<String, u64>, Error> {
        let node = self.nodes.get(&ino).ok_or(Error::NotFound)?;
        node.entries.as_ref().ok_or(Error::NotDirectory)
    }

    fn entries(&mut self, ino: u64) -> &mut BTreeMap<String, u64> {
        self.nodes.get_mut(&ino).unwrap().entries.as_mut().unwrap()
    }

    fn links(&self, ino: u64) -> usize {
        let entries = self.nodes.values().filter_map(|node| node.entries.as_ref());
        entries.flat_map(BTreeMap::values).filter(|one| **one == ino).count()
    }

    fn add(&mut self, directory: u64, name: &str, node: Node) -> Outcome {
        if self.directory(directory)?.contains_key(name) {
            return Err(Error::Exists);
        }
        let ino = self.next;
        self.next += 1;
        self.nodes.insert(ino, node);
        self.entries(directory).insert(name.to_owned(), ino);
        Ok(Some(ino))
    }

    fn release(&mut self, ino: u64) {
        if self.links(ino) == 0
            && let Some(node) = self.nodes.remove(&ino)
            && node.entries.is_none()
        {
            self.gone.insert(ino, node);
        }
    }

    fn is_above(&self, above: u64, below: u64) -> bool {
        let Some(entries) = self.nodes.get(&above).and_then(|node| node.entries.as_ref()) else {
            return false;
        };
        above == below || entries.values().any(|ino| self.is_above(*ino, below))
    }

    /// Makes a call.
    pub fn apply(&mut self, call: &Call) -> Outcome {
        match call {
            Call::Create(directory, name) => {
                self.add(*directory, name, Node { mode: 0o644, content: String::new(), entries: None })
            }
            Call::Mkdir(directory, name) => {
                let entries = Some(BTreeMap::new());
                self.add(*directory, name, Node { mode: 0o755, content: String::new(), entries })
            }
            Call::Unlink(directory, name) => {
                let ino = *self.directory(*directory)?.get(name).ok_or(Error::NotFound)?;
                if self.directory(ino).is_ok() {
                    return Err(Error::IsDirectory);
                }
                self.entries(*directory).remove(name);
                self.release(ino);
                Ok(None)
            }
            Call::Rmdir(directory, name) => {
                let ino = *self.directory(*directory)?.get(name).ok_or(Error::NotFound)?;
                if !self.directory(ino)?.is_empty() {
                    return Err(Error::NotEmpty);
                }
                self.entries(*directory).remove(name);
                self.nodes.remove(&ino);
                Ok(None)
            }
            Call::Link(ino, directory, name) => {
                if self.directory(*directory)?.contains_key(name) {
                    return Err(Error::Exists);
                }
                if let Some(node) = self.gone.remove(ino) {
                    self.nodes.insert(*ino, node);
                }
                let node = self.nodes.get(ino).ok_or(Error::NotFound)?;
                if node.entries.is_some() {
                    return Err(Error::NotPermitted);
                }
                self.entries(*directory).insert(name.clone(), *ino);
                Ok(None)
            }
            Call::Rename(from, name, to, new) => {
                let ino = *self.directory(*from)?.get(name).ok_or(Error::NotFound)?;
                let victim = self.directory(*to)?.get(new).copied();
                let is_directory = self.directory(ino).is_ok();
                if is_directory && from != to && self.is_above(ino, *to) {
                    return Err(Error::Invalid("".into()));
                }
                match victim {
                    Some(victim) if victim == ino => return Ok(None),
                    Some(victim) => match (is_directory, self.directory(victim).map(|entries| entries.len()))
                    {
                        (true, Err(_)) => return Err(Error::NotDirectory),
                        (false, Ok(_)) => return Err(Error::IsDirectory),
                        (true, Ok(1..)) => return Err(Error::NotEmpty),
                        _ => {}
                    },
                    None => {}
                }
                self.entries(*from).remove(name);
                self.entries(*to).insert(new.clone(), ino);
                if let Some(victim) = victim {
                    self.release(victim);
                }
                Ok(None)
            }
            Call::Put(ino, content) => {
                let node = self.nodes.get_mut(ino).ok_or(Error::NotFound)?;
                if node.entries.is_some() {
                    return Err(Error::IsDirectory);
                }
                node.content.clone_from(content);
                Ok(None)
            }
            Call::Chmod(ino, mode) => {
                self.nodes.get_mut(ino).ok_or(Error::NotFound)?.mode = *mode;
                Ok(None)
            }
            Call::Lookup(directory, name) => {
                Ok(Some(*self.directory(*directory)?.get(name).ok_or(Error::NotFound)?))
            }
        }
    }

    /// Returns what users see.
    pub fn shape(&self) -> Shape {
        let mut paths: BTreeMap<String, u64> = BTreeMap::new();
        let mut waiting = vec![(String::new(), 1)];
        while let Some((path, ino)) = waiting.pop() {
            assert!(paths.len() < 10_000, "a tree without an end");
            paths.insert(path.clone(), ino);
            for (name, below) in self.nodes[&ino].entries.iter().flatten() {
                waiting.push((format!("{path}/{name}"), *below));
            }
        }
        let mut first: BTreeMap<u64, String> = BTreeMap::new();
        let mut links: BTreeMap<u64, usize> = BTreeMap::new();
        for (path, ino) in &paths {
            first.entry(*ino).or_insert_with(|| path.clone());
            *links.entry(*ino).or_default() += 1;
        }
        let seen = |ino: &u64| {
            let node = &self.nodes[ino];
            (node.entries.is_some(), node.mode, node.content.clone(), links[ino], first[ino].clone())
        };
        paths.iter().map(|(path, ino)| (path.clone(), seen(ino))).collect()
    }
}
