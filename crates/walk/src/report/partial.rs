//! Partial sums of directories: the counts of this process in this run, while the rest is counted elsewhere.
//!
//! A trie: each directory is a node with its parent's node, a name, and a sum. A long path is stored once, whatever
//! number of directories lies on it, and a node always comes after its parent, so that one backward pass adds
//! everything up. Its serialised form is the nodes in order.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::chain::Level;
use crate::directory::Directory;
use crate::report::{Sums, Tally};

/// The size of nodes that are written or sent at once, in bytes.
const PORTION_BYTES: usize = 64 << 10;

/// The parent of a root's node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Node {
    parent: u32,
    /// The end of the name, which begins at the end of the previous node's name. The name of a root is its number in
    /// four bytes.
    name_end: u32,
    sum: SmallTally,
}

/// A sum in half the space, as most are small; `entries` of a larger one is [`LARGE`].
#[derive(Clone, Copy, Debug, Default)]
struct SmallTally {
    entries: u32,
    apparent: u32,
    allocated: u32,
}

/// The number of entries that stands for a sum which is kept elsewhere.
const LARGE: u32 = u32::MAX;

impl SmallTally {
    /// Returns a sum if it is small.
    fn new(tally: &Tally) -> Option<SmallTally> {
        Some(SmallTally {
            entries: u32::try_from(tally.entries).ok().filter(|entries| *entries != LARGE)?,
            apparent: u32::try_from(tally.apparent).ok()?,
            allocated: u32::try_from(tally.allocated).ok()?,
        })
    }
}

/// The directories of which only parts are counted here.
#[derive(Clone, Debug, Default)]
pub struct Partial {
    nodes: Vec<Node>,
    /// The sums that are not small, by their nodes.
    large: HashMap<u32, Tally>,
    names: Vec<u8>,
    /// A hash table of nodes by parent and name with open addressing: node numbers plus one, or 0. Its size is a power
    /// of two.
    table: Vec<u32>,
}

impl Partial {
    /// Returns the node of a root, creating it if needed.
    pub fn root(&mut self, root: u32) -> u32 {
        self.intern(NONE, &root.to_le_bytes())
    }

    /// Returns the node of a directory below `parent`, creating it if needed.
    pub fn child(&mut self, parent: u32, name: &[u8]) -> u32 {
        self.intern(parent, name)
    }

    /// Adds to the sum of a node.
    pub fn add(&mut self, node: u32, tally: &Tally) {
        let mut sum = self.sum(node);
        sum.add(tally);
        self.nodes[node as usize].sum = SmallTally::new(&sum).unwrap_or_else(|| {
            self.large.insert(node, sum);
            SmallTally { entries: LARGE, ..SmallTally::default() }
        });
    }

    fn sum(&self, node: u32) -> Tally {
        match self.nodes[node as usize].sum {
            SmallTally { entries: LARGE, .. } => self.large.get(&node).copied().unwrap_or_default(),
            SmallTally { entries, apparent, allocated } => {
                Tally { entries: entries.into(), apparent: apparent.into(), allocated: allocated.into() }
            }
        }
    }

    /// Resets all sums; nodes keep their numbers.
    pub fn clear_sums(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.sum = SmallTally::default());
        self.large.clear();
    }

    /// Returns whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn name(&self, node: u32) -> &[u8] {
        let begin = node.checked_sub(1).map_or(0, |before| self.nodes[before as usize].name_end);
        &self.names[begin as usize..self.nodes[node as usize].name_end as usize]
    }

    fn slot(&self, parent: u32, name: &[u8]) -> usize {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(name, parent.into());
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        while let Some(node) = self.table[slot].checked_sub(1) {
            if self.nodes[node as usize].parent == parent && self.name(node) == name {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn intern(&mut self, parent: u32, name: &[u8]) -> u32 {
        if (self.nodes.len() + 1) * 4 > self.table.len() * 3 {
            self.table = vec![0; (self.table.len() * 2).max(64)];
            for node in 0..self.nodes.len() as u32 {
                let slot = self.slot(self.nodes[node as usize].parent, self.name(node));
                self.table[slot] = node + 1;
            }
        }
        let slot = self.slot(parent, name);
        if let Some(node) = self.table[slot].checked_sub(1) {
            return node;
        }
        let node = self.nodes.len() as u32;
        // Names of more than four billion bytes, or as many directories that changed hands, no walk has memory for.
        assert!(
            self.names.len() + name.len() <= u32::MAX as usize && node < NONE - 1,
            "too many partial sums"
        );
        self.names.extend_from_slice(name);
        self.nodes.push(Node { parent, name_end: self.names.len() as u32, sum: SmallTally::default() });
        self.table[slot] = node + 1;
        node
    }

    /// Passes all nodes in order to `send`, as bytes, in batches that [`Received::add`] accepts.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send(&self, send: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.send_with(&[], send)
    }

    /// Passes all nodes to `send` as [`Partial::send`] does, and after them those of directories that are begun, with their counts. A
    /// directory that has a node already gets another one: who receives both adds them up. So no node is made here for a walk that
    /// is only saved.
    ///
    /// # Errors
    /// Those of `send`, or if a directory comes before the one that it is in.
    pub(crate) fn send_with(
        &self,
        begun: &[Arc<Directory<Sums>>],
        send: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut portions = Portions { bytes: Vec::new(), send };
        for node in 0..self.nodes.len() as u32 {
            portions.put(self.nodes[node as usize].parent, self.name(node), &self.sum(node))?;
        }
        let mut numbers = HashMap::new();
        let mut next = self.nodes.len() as u32;
        #[expect(clippy::explicit_counter_loop, reason = "packed directories are counted as well")]
        for directory in begun {
            let mut parent = match directory.ancestor() {
                None => NONE,
                Some(above) => *numbers
                    .get(&Arc::as_ptr(&above))
                    .ok_or_else(|| io::Error::other("a directory comes before the one that it is in"))?,
            };
            let packed = directory.with_packed(|levels| {
                levels.iter().try_for_each(|record| -> io::Result<()> {
                    let level = Level::get(record);
                    portions.put(parent, level.name, &Sums::unpack(level.state).tally())?;
                    parent = next;
                    next += 1;
                    Ok(())
                })
            });
            packed.unwrap_or(Ok(()))?;
            let root = directory.root().to_le_bytes();
            let name = if parent == NONE { &root[..] } else { directory.name().to_bytes() };
            portions.put(parent, name, &directory.state().tally())?;
            numbers.insert(Arc::as_ptr(directory), next);
            next += 1;
        }
        portions.end()
    }

    /// Passes every directory to `show` with the sum of its contents at all depths, the deepest of a path first: the
    /// root's number, the depth below it, the sum, and its place.
    pub(crate) fn finish(mut self, mut show: impl FnMut(u32, u32, &Tally, NodePlace<'_>)) {
        let mut depths = vec![0_u32; self.nodes.len()];
        let mut roots = vec![0_u32; self.nodes.len()];
        for (node, Node { parent, .. }) in self.nodes.iter().enumerate() {
            if let Some(parent) = self.nodes.get(*parent as usize).map(|_| *parent as usize) {
                (depths[node], roots[node]) = (depths[parent] + 1, roots[parent]);
            } else {
                roots[node] =
                    self.name(node as u32).first_chunk().map_or(0, |root| u32::from_le_bytes(*root));
            }
        }
        for node in (0..self.nodes.len()).rev() {
            let (parent, tally) = (self.nodes[node].parent, self.sum(node as u32));
            show(roots[node], depths[node], &tally, NodePlace { partial: &self, node: node as u32 });
            if parent != NONE {
                self.add(parent, &Tally { entries: 0, ..tally });
            }
        }
    }
}

/// Nodes as bytes, which are handed on in portions.
struct Portions<F> {
    bytes: Vec<u8>,
    send: F,
}

impl<F: FnMut(&[u8]) -> io::Result<()>> Portions<F> {
    fn put(&mut self, parent: u32, name: &[u8], tally: &Tally) -> io::Result<()> {
        let record = (parent.wrapping_add(1), name, tally);
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(&record, bytes).map_err(io::Error::other)?;
        if self.bytes.len() >= PORTION_BYTES {
            (self.send)(&self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    fn end(mut self) -> io::Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { (self.send)(&self.bytes) }
    }
}

/// The place of a directory while the sums are added up.
pub(crate) struct NodePlace<'a> {
    partial: &'a Partial,
    node: u32,
}

impl NodePlace<'_> {
    /// Appends the path below the root.
    pub fn write_path(&self, path: &mut Vec<u8>) {
        let Partial { nodes, .. } = self.partial;
        let (begin, mut at) = (path.len(), self.node);
        // Written from its end to its beginning.
        while nodes[at as usize].parent != NONE {
            if path.len() > begin {
                path.push(b'/');
            }
            path.extend(self.partial.name(at).iter().rev());
            at = nodes[at as usize].parent;
        }
        path[begin..].reverse();
    }

    /// Returns whether so many directories above it have bytes beside those below it.
    pub fn has_larger_above(&self, count: usize) -> bool {
        let nodes = &self.partial.nodes;
        let above =
            |at: u32| nodes.get(nodes[at as usize].parent as usize).map(|_| nodes[at as usize].parent);
        let lineage = std::iter::successors(above(self.node), |at| above(*at));
        lineage.filter(|at| self.partial.sum(*at).allocated > 0).take(count).count() == count
    }
}

/// Nodes received from another process, where they had other numbers.
#[derive(Debug, Default)]
pub struct Received {
    /// The node numbers here, by their numbers there.
    numbers: Vec<u32>,
}

impl Received {
    /// Adds the nodes and sums of a batch; returns false if it is not valid output of [`Partial::send`].
    pub fn add(&mut self, partial: &mut Partial, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Ok(((parent, name, tally), rest)) = postcard::take_from_bytes::<(u32, &[u8], Tally)>(bytes)
            else {
                return false;
            };
            let node = match parent.checked_sub(1) {
                None if name.len() == 4 => partial.intern(NONE, name),
                Some(parent) if is_name(name) && (parent as usize) < self.numbers.len() => {
                    partial.child(self.numbers[parent as usize], name)
                }
                _ => return false,
            };
            partial.add(node, &tally);
            self.numbers.push(node);
            bytes = rest;
        }
        true
    }

    /// Returns the number here of a node that was sent.
    pub fn number(&self, sent: u32) -> Option<u32> {
        self.numbers.get(sent as usize).copied()
    }
}

/// Returns whether a directory can hold an entry with this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&0) && !name.contains(&b'/')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn tally(entries: u64) -> Tally {
        Tally { entries, apparent: entries * 10, allocated: entries * 100 }
    }

    type Sums = BTreeMap<(u32, Vec<u8>), (u32, Tally)>;

    fn sums(partial: Partial) -> Sums {
        let mut sums = Sums::new();
        partial.finish(|root, depth, tally, place| {
            let mut bytes = Vec::new();
            place.write_path(&mut bytes);
            assert!(sums.insert((root, bytes), (depth, *tally)).is_none());
        });
        sums
    }

    #[test]
    fn sums_are_those_of_paths_wherever_they_were_counted() {
        let mut naive: BTreeMap<(u32, Vec<u8>), Tally> = BTreeMap::new();
        let mut parts: Vec<Partial> = vec![Partial::default(); 3];
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..3000 {
            let (part, root) = (&mut parts[random(3) as usize], random(2) as u32);
            let (mut node, mut path) = (part.root(root), Vec::new());
            let counted = tally(random(5));
            let mut ways = vec![path.clone()];
            for _ in 0..random(6) {
                let name = format!("{}", random(4)).into_bytes();
                node = part.child(node, &name);
                path = if path.is_empty() { name } else { [&path, &b"/"[..], &name].concat() };
                ways.push(path.clone());
            }
            part.add(node, &counted);
            for way in ways {
                let entries = if way == path { counted.entries } else { 0 };
                naive.entry((root, way)).or_default().add(&Tally { entries, ..counted });
            }
        }
        let mut all = Partial::default();
        for part in &parts {
            let mut received = Received::default();
            part.send(|bytes| {
                assert!(received.add(&mut all, bytes));
                Ok(())
            })
            .unwrap();
        }
        let sums = sums(all);
        assert_eq!(sums.len(), naive.len());
        for ((root, path), (depth, tally)) in sums {
            let levels = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
            assert_eq!((levels as u32, tally), (depth, naive[&(root, path)]));
        }
    }

    #[test]
    fn sums_are_exact_however_large_they_are() {
        let mut partial = Partial::default();
        let root = partial.root(0);
        let nodes = [partial.child(root, b"a"), partial.child(root, b"b")];
        let bytes = u64::from(u32::MAX);
        for _ in 0..3 {
            partial.add(nodes[0], &Tally { entries: 1, apparent: bytes, allocated: 1 });
            partial.add(nodes[1], &Tally { entries: bytes, apparent: 1, allocated: bytes });
        }
        let mut again = Partial::default();
        let mut received = Received::default();
        partial
            .send(|bytes| {
                assert!(received.add(&mut again, bytes));
                Ok(())
            })
            .unwrap();
        partial.clear_sums();
        assert!(sums(partial).values().all(|(_, tally)| *tally == Tally::default()));
        let sums = sums(again);
        let sum = |path: &str| sums[&(0, path.as_bytes().to_vec())].1;
        assert_eq!(sum("a"), Tally { entries: 3, apparent: 3 * bytes, allocated: 3 });
        assert_eq!(sum("b"), Tally { entries: 3 * bytes, apparent: 3, allocated: 3 * bytes });
        assert_eq!(sum(""), Tally { entries: 0, apparent: 3 * bytes + 3, allocated: 3 * bytes + 3 });
    }

    #[test]
    fn a_long_chain_takes_its_names_once() {
        let mut partial = Partial::default();
        let mut node = partial.root(0);
        for _ in 0..100_000 {
            node = partial.child(node, b"d");
            partial.add(node, &tally(1));
        }
        let mut bytes = 0;
        partial
            .send(|batch| {
                bytes += batch.len();
                Ok(())
            })
            .unwrap();
        assert!(bytes < 100_000 * 20, "{bytes}");
        let mut whole = Tally::default();
        partial.finish(|_, depth, tally, _| {
            if depth == 0 {
                whole = *tally;
            }
        });
        assert_eq!(whole.apparent, 1_000_000);
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |record: &(u32, &[u8], Tally)| {
            let bytes = postcard::to_stdvec(record).unwrap();
            !Received::default().add(&mut Partial::default(), &bytes)
        };
        assert!(refused(&(1, b"a", tally(1))), "there is no such node yet");
        assert!(refused(&(0, b"a", tally(1))), "a root is a number");
        let mut bytes = postcard::to_stdvec(&(0_u32, &[0_u8; 4][..], tally(1))).unwrap();
        bytes.extend(postcard::to_stdvec(&(1_u32, &b".."[..], tally(1))).unwrap());
        assert!(!Received::default().add(&mut Partial::default(), &bytes));
        assert!(!Received::default().add(&mut Partial::default(), &[0xff; 7]));
    }
}
