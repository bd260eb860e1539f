//! The order in which an idle rank asks its peers in PA-DRQS: those on its own node before those far away (section
//! IV-C).
//!
//! Every rank knows the network number of every other (in MPI, gathered once at the start). Sorting them brings the ranks of one
//! node together; a rank's position among those is its local rank. The *request vector* of a rank is its own node's ranks, local
//! rank 0 first, followed by all others. A rank asks it from top to bottom, each request going to the *next* peer
//! (algorithm 3, line 7), and then from the top again.
//!
//! The paper leaves the order of the others open. Here they begin with the node after the rank's own in the sorted
//! list, and go round. If all ranks had them in the same order they would go through it in step: on 8,000 ranks, all
//! have asked rank 0 before it has anything to give, and return when the walk should long be over. Nor does a rank
//! begin at the top again when it has found work, which would drain the first ranks of the list again and again.
//!
//! A few requests ([`PATIENCE`]) are made without waiting. Then ranks wait as they do in DRQS, but since only one rank
//! of each node asks other nodes, it need not wait as long as if all did.
//!
//! Two refinements follow the authors' observations: local rank 0 asks the ranks of other nodes first, because when one
//! rank of a node is idle the others tend to be; and the other ranks ask only within the node, because while they would
//! ask other nodes, their local rank 0 has usually found work.
//!
//! The vector is never materialised: 143,104 vectors of 143,104 ranks would be 80 GB. Its elements are computed from
//! the sorted list, which all ranks share.

use std::sync::Arc;

/// The maximum number of requests to the peers of a vector that are made in a row without waiting.
pub const PATIENCE: u32 = 64;

/// The assignment of ranks to nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// All ranks, grouped by node, nodes ordered by network number, ranks of a node in order.
    sorted: Vec<u32>,
    /// The index of each rank in `sorted`.
    position: Vec<u32>,
    /// The range of each rank's node in `sorted`.
    group: Vec<(u32, u32)>,
    nodes: u32,
}

impl Nodes {
    /// Groups ranks by their network numbers: any value that identifies a node, such as an address or a hash of a name.
    pub fn new(network_numbers: &[u64]) -> Self {
        let ranks = network_numbers.len();
        let mut sorted: Vec<u32> = (0..ranks as u32).collect();
        sorted.sort_by_key(|rank| (network_numbers[*rank as usize], *rank));
        let mut position = vec![0; ranks];
        let mut group = vec![(0, 0); ranks];
        let mut nodes = 0;
        let mut begin = 0;
        while begin < ranks {
            let number = network_numbers[sorted[begin] as usize];
            let end = begin
                + sorted[begin..]
                    .iter()
                    .take_while(|rank| network_numbers[**rank as usize] == number)
                    .count();
            for (offset, rank) in sorted[begin..end].iter().enumerate() {
                position[*rank as usize] = (begin + offset) as u32;
                group[*rank as usize] = (begin as u32, end as u32);
            }
            nodes += 1;
            begin = end;
        }
        Self { sorted, position, group, nodes }
    }

    /// Places `ranks` on nodes of `per_node` (at least 1) one after the other.
    pub fn blocks(ranks: u32, per_node: u32) -> Self {
        let numbers: Vec<u64> = (0..ranks).map(|rank| u64::from(rank / per_node.max(1))).collect();
        Self::new(&numbers)
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.sorted.len() as u32
    }

    /// Returns the rank's number among those of its node.
    pub fn local_rank(&self, rank: u32) -> u32 {
        self.position[rank as usize] - self.group[rank as usize].0
    }

    /// Returns the number of ranks on this rank's node, itself included.
    pub fn local_ranks(&self, rank: u32) -> u32 {
        let (begin, end) = self.group[rank as usize];
        end - begin
    }

    /// Returns whether two ranks share a node.
    pub fn are_colocated(&self, one: u32, other: u32) -> bool {
        self.group[one as usize] == self.group[other as usize]
    }
}

/// One rank's request vector.
#[derive(Clone, Debug)]
pub struct RequestVector {
    nodes: Arc<Nodes>,
    rank: u32,
    /// Applies both of the paper's refinements.
    refined: bool,
    next: u32,
}

impl RequestVector {
    /// Creates the vector of `rank`; `refined` applies the paper's two refinements.
    pub fn new(nodes: Arc<Nodes>, rank: u32, refined: bool) -> Self {
        Self { nodes, rank, refined, next: 0 }
    }

    /// Returns the number of ranks in it.
    pub fn len(&self) -> u32 {
        let local = self.nodes.local_ranks(self.rank) - 1;
        if self.refined && self.nodes.local_rank(self.rank) != 0 { local } else { self.nodes.ranks() - 1 }
    }

    /// Returns whether it holds no rank.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the rank at `index` of the vector.
    pub fn get(&self, index: u32) -> u32 {
        let nodes = &self.nodes;
        let (begin, end) = nodes.group[self.rank as usize];
        let local = end - begin - 1;
        let remote = nodes.ranks() - local - 1;
        let remote_first = self.refined && nodes.local_rank(self.rank) == 0;
        let (is_local, index) = match (remote_first, index) {
            (true, index) if index >= remote => (true, index - remote),
            (true, index) => (false, index),
            (false, index) if index < local => (true, index),
            (false, index) => (false, index - local),
        };
        let place = if is_local {
            let place = begin + index;
            place + u32::from(place >= nodes.position[self.rank as usize])
        } else {
            // From the next node on, and around.
            (end + index) % nodes.ranks()
        };
        nodes.sorted[place as usize]
    }

    /// Returns the number of ranks that ask other nodes, if this is one of them; its waiting time depends on that
    /// number.
    pub fn far_seekers(&self) -> u32 {
        if self.refined && self.nodes.local_rank(self.rank) == 0 {
            self.nodes.nodes()
        } else {
            self.nodes.ranks()
        }
    }

    /// Returns the next rank to ask, and advances.
    pub fn advance(&mut self) -> u32 {
        let peer = self.get(self.next);
        self.next = (self.next + 1) % self.len();
        peer
    }

    /// Returns the index of the next rank to ask.
    pub fn next_index(&self) -> u32 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(numbers: &[u64], rank: u32, refined: bool) -> Vec<u32> {
        let vector = RequestVector::new(Arc::new(Nodes::new(numbers)), rank, refined);
        (0..vector.len()).map(|index| vector.get(index)).collect()
    }

    /// Nodes 7 (ranks 1, 2, 5), 9 (ranks 0, 4) and 30 (rank 3), as a batch system may place them.
    const NUMBERS: [u64; 6] = [9, 7, 7, 30, 9, 7];

    #[test]
    fn the_plain_order_is_the_own_node_then_the_others() {
        assert_eq!(vector(&NUMBERS, 2, false), [1, 5, 0, 4, 3]);
        assert_eq!(vector(&NUMBERS, 4, false), [0, 3, 1, 2, 5]);
        assert_eq!(vector(&NUMBERS, 3, false), [1, 2, 5, 0, 4]);
    }

    #[test]
    fn the_refined_order_sends_local_rank_0_abroad_and_keeps_the_others_home() {
        assert_eq!(vector(&NUMBERS, 1, true), [0, 4, 3, 2, 5], "local rank 0 of node 7");
        assert_eq!(vector(&NUMBERS, 2, true), [1, 5]);
        assert_eq!(vector(&NUMBERS, 4, true), [0]);
        assert_eq!(vector(&NUMBERS, 3, true), [1, 2, 5, 0, 4], "alone on its node");
        assert_eq!(vector(&[1, 1, 1], 0, true), [1, 2], "one node");
    }

    #[test]
    fn every_vector_holds_each_other_rank_once() {
        for ranks in 1..12 {
            for per_node in 1..5 {
                let nodes = Arc::new(Nodes::blocks(ranks, per_node));
                for rank in 0..ranks {
                    let vector = RequestVector::new(nodes.clone(), rank, false);
                    let mut peers: Vec<u32> = (0..vector.len()).map(|index| vector.get(index)).collect();
                    peers.sort_unstable();
                    assert!(peers.into_iter().eq((0..ranks).filter(|other| *other != rank)));
                }
            }
        }
    }
}
