//! Rates, in copies sent rather than datagrams received: one datagram to a group of a hundred costs a hundred.
//!
//! The bucket is kept as the time at which it will be full again (a generic cell rate algorithm): one number, no
//! division, so that the kernel's programs can keep the same bucket by one compare-and-swap.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashTable;

use crate::pages::Pages;
use crate::table::GroupId;

/// A limit in copies a second, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The cost of one copy, in nanoseconds of the bucket. 0 is no limit.
    pub copy_ns: u64,
    /// The time by which the bucket may run ahead of the clock, in nanoseconds.
    pub burst_ns: u64,
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Rate = Rate { copy_ns: 0, burst_ns: 0 };

    /// Returns a limit of `copies` a second, of which `burst` may come at once. 0 copies a second is no limit.
    pub fn per_second(copies: u64, burst: u64) -> Rate {
        match copies {
            0 => Self::UNLIMITED,
            copies => {
                let copy_ns = (1_000_000_000 / copies).max(1);
                Rate { copy_ns, burst_ns: copy_ns.saturating_mul(burst.max(1)) }
            }
        }
    }

    /// Takes `copies` from a bucket, or leaves it as it is and returns false. A datagram with more copies than the
    /// burst holds is let through by a full bucket, and pays afterwards: otherwise a small burst would silence a large
    /// group forever.
    pub fn take(self, full_at_ns: &mut u64, now_ns: u64, copies: u64) -> bool {
        match self.after(*full_at_ns, now_ns, copies) {
            None => false,
            Some(after) => {
                *full_at_ns = after;
                true
            }
        }
    }

    /// Returns the bucket after `copies` are taken from it now, or `None` if they are too many.
    pub fn after(self, full_at_ns: u64, now_ns: u64, copies: u64) -> Option<u64> {
        if self.copy_ns == 0 {
            return Some(full_at_ns);
        }
        let from = full_at_ns.max(now_ns);
        let after = from.saturating_add(self.copy_ns.saturating_mul(copies));
        (from == now_ns || after - now_ns <= self.burst_ns).then_some(after)
    }

    /// Takes `copies` from a bucket that programs in the kernel take from too, or leaves it as it is and returns false:
    /// `bucket_take` of `bpf/shared.h`. A bucket that others change again and again is over its rate anyway.
    pub fn take_shared(self, bucket: &AtomicU64, now_ns: u64, copies: u64) -> bool {
        const TRIES: usize = 8;
        let mut full_at_ns = bucket.load(Relaxed);
        for _ in 0..TRIES {
            match self.after(full_at_ns, now_ns, copies) {
                None => return false,
                Some(after) => match bucket.compare_exchange(full_at_ns, after, Relaxed, Relaxed) {
                    Ok(_) => return true,
                    Err(found) => full_at_ns = found,
                },
            }
        }
        false
    }

    /// Gives `copies` back to a bucket that they were taken from.
    pub fn give_back(self, bucket: &AtomicU64, copies: u64) {
        bucket.fetch_sub(self.copy_ns.saturating_mul(copies), Relaxed);
    }

    /// Returns the longest time in which a bucket is full again, in nanoseconds, where no datagram has more copies than
    /// this.
    fn full_ns(self, copies_max: u64) -> u64 {
        self.burst_ns.max(self.copy_ns.saturating_mul(copies_max))
    }
}

/// The owner of a rate in a group. It stays the same however often a member leaves and joins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// The bearer of tokens with this identity.
    Identity([u8; 16]),
    /// All members at an IPv4 address, or in an IPv6 network of 64 bits, whatever their ports: whoever has one address
    /// of such a network has all of them.
    Address(IpAddr),
}

impl Owner {
    /// Returns the owner for a member that has shown no identity.
    pub fn of_address(address: IpAddr) -> Owner {
        Owner::Address(match address.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
            ip => ip,
        })
    }
}

/// The place of a bucket. Places of buckets that were given up are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketIndex(pub u32);

/// The greatest number of buckets that are kept for owners without members, until they are full again.
pub const IDLE_MAX: usize = 1 << 14;

/// A bucket. One that was given up has no members, and is found by nobody.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The keyed hash of group and owner.
    key: u64,
    full_at_ns: u64,
    members: u32,
    /// The number of its entries among those without members.
    idle: u32,
}

/// The buckets of the owners of rates. A bucket is given up when its owner has no member in the group and it is full
/// again, so that nobody gains by leaving.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    keys: RandomState,
    at: HashTable<u32>,
    all: Pages<Bucket>,
    free: Vec<u32>,
    /// The buckets that lost their last member since the last [`Buckets::age`], with the time that they may take to be full.
    left: Vec<(u32, u64)>,
    /// The buckets without members: the place, and the time from which it is full at the latest, in nanoseconds.
    idle: VecDeque<(u32, u64)>,
}

impl Buckets {
    /// Returns the bucket of an owner, for one member more.
    pub fn enter(&mut self, group: GroupId, owner: Owner) -> BucketIndex {
        let key = self.keys.hash_one((group, owner));
        let at = match self.at.find(key, |at| self.all[*at as usize].key == key) {
            Some(at) => *at,
            None => {
                let bucket = Bucket { key, full_at_ns: 0, members: 0, idle: 0 };
                let at = match self.free.pop() {
                    Some(at) => {
                        self.all[at as usize] = bucket;
                        at
                    }
                    None => {
                        self.all.push(bucket);
                        self.all.len() as u32 - 1
                    }
                };
                self.at.insert_unique(key, at, |at| self.all[*at as usize].key);
                at
            }
        };
        self.enter_again(BucketIndex(at));
        BucketIndex(at)
    }

    /// Notes that the owner of a bucket has one member more.
    pub fn enter_again(&mut self, BucketIndex(at): BucketIndex) {
        self.all[at as usize].members += 1;
    }

    /// Notes that an owner has one member less.
    pub fn leave(&mut self, BucketIndex(at): BucketIndex, rate: Rate, copies_max: u64) {
        let bucket = &mut self.all[at as usize];
        bucket.members -= 1;
        if bucket.members == 0 {
            bucket.idle += 1;
            self.left.push((at, rate.full_ns(copies_max)));
        }
    }

    pub fn full_at_ns(&self, BucketIndex(at): BucketIndex) -> u64 {
        self.all[at as usize].full_at_ns
    }

    pub fn set(&mut self, BucketIndex(at): BucketIndex, full_at_ns: u64) {
        self.all[at as usize].full_at_ns = full_at_ns;
    }

    /// Gives up the buckets that nobody needs any more.
    pub fn age(&mut self, now_ns: u64) {
        for (at, full_ns) in self.left.drain(..) {
            self.idle.push_back((at, now_ns.saturating_add(full_ns)));
        }
        let over = self.idle.len().saturating_sub(IDLE_MAX);
        for number in 0..self.idle.len() {
            let Some(&(at, full_at_ns)) = self.idle.front() else { return };
            if number >= over && full_at_ns > now_ns {
                return;
            }
            self.idle.pop_front();
            let bucket = &mut self.all[at as usize];
            bucket.idle -= 1;
            // An owner that came back, and went again, has a later entry.
            if bucket.members == 0 && bucket.idle == 0 {
                if let Ok(found) = self.at.find_entry(bucket.key, |found| *found == at) {
                    found.remove();
                }
                self.free.push(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_time_whatever_the_portions() {
        let rate = Rate::per_second(1000, 50);
        let (mut bucket, mut admitted) = (0, 0);
        for now_us in 0..2_000_000_u64 {
            admitted += if rate.take(&mut bucket, now_us * 1000, 7) { 7 } else { 0 };
        }
        assert!((1990..=2060).contains(&admitted), "{admitted}");
    }

    #[test]
    fn a_full_bucket_lets_any_datagram_through_and_makes_it_pay() {
        let rate = Rate::per_second(10, 5);
        let mut bucket = 0;
        assert!(rate.take(&mut bucket, 1_000_000_000, 100));
        assert!(!rate.take(&mut bucket, 10_000_000_000, 1));
        assert!(rate.take(&mut bucket, 11_000_000_000, 1));
    }

    #[test]
    fn a_bucket_outlives_its_members_until_it_is_full_and_memory_is_bounded() {
        let (mut buckets, rate) = (Buckets::default(), Rate::per_second(10, 100));
        let group = GroupId { port: 7400, id: 0 };
        let owner = |number: u32| Owner::of_address(IpAddr::from(number.to_be_bytes()));
        for round in 0..100_u64 {
            let bucket = buckets.enter(group, owner(1));
            assert_eq!(buckets.full_at_ns(bucket), round);
            buckets.set(bucket, round + 1);
            buckets.leave(bucket, rate, 1);
            buckets.age(round * 1_000_000);
        }
        let other = GroupId { port: 7400, id: 1 };
        let bucket = buckets.enter(other, owner(1));
        assert_eq!(buckets.full_at_ns(bucket), 0, "another group has another bucket");
        buckets.leave(bucket, rate, 1);
        buckets.age(10_200_000_000);
        assert_eq!(buckets.at.len(), 1, "the one that is not full yet");
        buckets.age(20_300_000_000);
        assert!(buckets.at.is_empty() && buckets.idle.is_empty());
        for number in 0..3 * IDLE_MAX as u32 {
            let bucket = buckets.enter(group, owner(number));
            buckets.leave(bucket, rate, 1);
            if number % 1000 == 0 {
                buckets.age(20_300_000_000);
            }
        }
        buckets.age(20_300_000_000);
        assert_eq!((buckets.at.len(), buckets.idle.len()), (IDLE_MAX, IDLE_MAX));
        assert!(buckets.all.len() < IDLE_MAX + 1001);
    }

    #[test]
    fn an_ipv6_network_is_one_owner() {
        let owner = |ip: &str| Owner::of_address(ip.parse().unwrap());
        assert_eq!(owner("2001:db8:1:2::1"), owner("2001:db8:1:2:ffff::9"));
        assert_ne!(owner("2001:db8:1:2::1"), owner("2001:db8:1:3::1"));
        assert_ne!(owner("192.0.2.1"), owner("192.0.2.2"));
        assert_eq!(owner("192.0.2.1"), owner("::ffff:192.0.2.1"));
    }

    #[test]
    fn no_limit_is_no_limit() {
        let mut bucket = 0;
        assert!((0..1000).all(|_| Rate::UNLIMITED.take(&mut bucket, 0, u64::MAX)));
    }
}
