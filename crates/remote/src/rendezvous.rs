//! The choice of the server that keeps an object.
//!
//! Rendezvous hashing: the server with the greatest score for an object keeps it. The score is XXH3-64 of the
//! object's id, seeded with XXH3-64 of the server's name as text. All servers have equal weight; when one is added,
//! it takes over its share and nothing else moves.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The choice among servers.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    seeds: Vec<u64>,
}

impl Rendezvous {
    /// Creates a choice among servers, given their names.
    pub fn new(addresses: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let seeds = addresses.into_iter().map(|address| xxh3_64(address.as_ref().as_bytes())).collect();
        Self { seeds }
    }

    /// Returns the index of the server that keeps an object. Takes time linear in the number of servers.
    pub fn choose(&self, object: &[u8]) -> usize {
        if self.seeds.len() == 1 {
            return 0;
        }
        let scores = self.seeds.iter().enumerate().map(|(index, seed)| {
            // Ties are broken by the seed, so that the order of the addresses never matters.
            (xxh3_64_with_seed(object, *seed), *seed, index)
        });
        scores.max().map_or(0, |(_, _, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_pinned() {
        let three = Rendezvous::new(["a:6470", "b:6470", "c:6470"]);
        let places: Vec<usize> = (0..16).map(|n| three.choose(format!("object-{n}").as_bytes())).collect();
        assert_eq!(places, GOLDEN);
        let turned = Rendezvous::new(["c:6470", "a:6470", "b:6470"]);
        for (n, chosen) in places.iter().enumerate() {
            assert_eq!((turned.choose(format!("object-{n}").as_bytes()) + 2) % 3, *chosen);
        }
    }
    const GOLDEN: [usize; 16] = [2, 0, 1, 1, 1, 0, 1, 0, 1, 2, 0, 0, 2, 0, 2, 2];

    #[test]
    fn a_new_server_takes_its_share_and_moves_nothing_else() {
        let before = Rendezvous::new((0..4).map(|n| format!("10.0.0.{n}:6470")));
        let after = Rendezvous::new((0..5).map(|n| format!("10.0.0.{n}:6470")));
        let mut counts = [0; 5];
        for n in 0..20_000 {
            let object = format!("object-{n}");
            let (old, new) = (before.choose(object.as_bytes()), after.choose(object.as_bytes()));
            assert!(new == old || new == 4, "{object} moved from {old} to {new}");
            counts[new] += 1;
        }
        for count in counts {
            assert!((3600..4400).contains(&count), "{counts:?}");
        }
    }
}
