//! Items between two reflectors, each once and in order, over a network that loses, repeats and reorders datagrams: one
//! side of a relay, without clock or I/O.
//!
//! While a location moves, its former reflector (the *old* one) puts all datagrams of the location into one order,
//! those of its own members and those that the *new* one sends it. Both copy them in that order, each to its own
//! members, and a member goes from one to the other at one point of the order. So every member gets every datagram once,
//! and each sender's in the order sent. `control/relay.rs` has the protocol; this module has its transport.
//!
//! Invariants:
//! - [`Channel::ready`] returns the items that the other side pushed, in that order, each once.
//! - At most [`WINDOW`] items are under way, and items beyond the window are dropped on arrival.
//! - Waiting items are bounded by [`BYTES_MAX`]; the caller checks [`Channel::has_space`] before it pushes.

use std::collections::{BTreeMap, VecDeque};

use crate::wire::relay::{Item, Receipt, WINDOW};

/// The greatest number of bytes that wait on one side of a relay.
pub const BYTES_MAX: usize = 4 << 20;
/// The cost of an item beside its bytes, in bytes.
const ITEM_BYTES: usize = 64;
/// The number of items after which a receipt is sent at once.
const RECEIPT_EVERY: u32 = 16;
/// The bounds of the wait for a receipt before an item is sent again, in microseconds.
const AGAIN_US: std::ops::RangeInclusive<u64> = 30_000..=500_000;
/// The delay there and back that is believed at first, in microseconds.
const DELAY_US: u64 = 50_000;

#[derive(Debug)]
struct Sent {
    item: Item,
    /// The time at which it was sent last; `None` if it was not yet.
    sent_us: Option<u64>,
    times: u32,
    taken: bool,
}

/// One side of a relay.
#[derive(Debug)]
pub struct Channel {
    /// The number of the first item of `queue`.
    first: u32,
    queue: VecDeque<Sent>,
    bytes: usize,
    delay_us: u64,
    /// The number of the next item to be taken.
    next: u32,
    later: BTreeMap<u32, Item>,
    /// Items that have come and were not taken yet.
    pub ready: VecDeque<Item>,
    /// The number of items that came since the last receipt.
    owed: u32,
    /// True if a receipt is due now.
    receipt_due: bool,
}

impl Default for Channel {
    fn default() -> Self {
        Channel {
            first: 1,
            queue: VecDeque::new(),
            bytes: 0,
            delay_us: DELAY_US,
            next: 1,
            later: BTreeMap::new(),
            ready: VecDeque::new(),
            owed: 0,
            receipt_due: false,
        }
    }
}

impl Channel {
    /// Returns whether one more datagram may wait.
    pub fn has_space(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    /// Returns whether everything that was pushed has been taken.
    pub fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    /// Puts an item behind the others.
    pub fn push(&mut self, item: Item) {
        self.bytes += ITEM_BYTES + item.bytes.len();
        self.queue.push_back(Sent { item, sent_us: None, times: 0, taken: false });
    }

    /// Takes a message from the other side.
    pub fn take(&mut self, now_us: u64, receipt: &Receipt, item: Option<(u32, Item)>) {
        self.taken(now_us, receipt);
        let Some((number, item)) = item else { return };
        self.owed += 1;
        match number.checked_sub(self.next) {
            Some(0) => {
                self.ready.push_back(item);
                self.next += 1;
                while let Some(item) = self.later.remove(&self.next) {
                    self.ready.push_back(item);
                    self.next += 1;
                }
            }
            // Something before it is missing: the other side is to know soon.
            Some(ahead) if (ahead as usize) < WINDOW => {
                self.later.insert(number, item);
                self.receipt_due = true;
            }
            // It came again, so the receipt for it may have been lost.
            _ => self.receipt_due = true,
        }
        self.receipt_due |= self.owed >= RECEIPT_EVERY;
    }

    fn taken(&mut self, now_us: u64, receipt: &Receipt) {
        let first = self.first;
        let sent = self.queue.iter_mut().take(WINDOW).take_while(|sent| sent.sent_us.is_some());
        for (sent, number) in sent.zip(first..) {
            let is_taken = match number.checked_sub(receipt.next) {
                None => true,
                Some(0) => false,
                Some(ahead) => {
                    let bit = ahead as usize - 1;
                    receipt.later.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
                }
            };
            if is_taken && !sent.taken {
                sent.taken = true;
                if let (1, Some(sent_us)) = (sent.times, sent.sent_us) {
                    let delay_us = now_us.saturating_sub(sent_us);
                    self.delay_us = self.delay_us - self.delay_us / 8 + delay_us / 8;
                }
            }
        }
        while self.queue.front().is_some_and(|sent| sent.taken) {
            if let Some(sent) = self.queue.pop_front() {
                self.bytes -= ITEM_BYTES + sent.item.bytes.len();
                self.first += 1;
            }
        }
    }

    /// Returns the receipt for the received items.
    pub fn receipt(&self, receivers: u32) -> Receipt {
        let mut later = [0; WINDOW / 64];
        for number in self.later.keys() {
            let bit = (number - self.next) as usize - 1;
            if let Some(word) = later.get_mut(bit / 64) {
                *word |= 1 << (bit % 64);
            }
        }
        Receipt { next: self.next, later, receivers }
    }

    /// Sends due items: new ones as far as the window allows, and again those without a receipt in time.
    /// Returns true if anything was sent.
    pub fn send(&mut self, now_us: u64, mut send: impl FnMut(u32, &Item)) -> bool {
        let window = self.queue.len().min(WINDOW);
        let last_taken = self.queue.iter().take(window).rposition(|sent| sent.taken);
        let again_us = (self.delay_us * 2).clamp(*AGAIN_US.start(), *AGAIN_US.end());
        let soon_us = (self.delay_us + self.delay_us / 4).max(2000);
        let mut any = false;
        for at in 0..window {
            let sent = &mut self.queue[at];
            let is_due = match sent.sent_us {
                _ if sent.taken => false,
                None => true,
                Some(sent_us) => {
                    let age_us = now_us.saturating_sub(sent_us);
                    let is_gap = sent.times == 1 && last_taken.is_some_and(|last| at < last);
                    age_us >= again_us << sent.times.min(4).saturating_sub(1) || is_gap && age_us >= soon_us
                }
            };
            if is_due {
                send(self.first + at as u32, &sent.item);
                sent.sent_us = Some(now_us);
                sent.times += 1;
                any = true;
            }
        }
        if any {
            self.receipt_sent();
        }
        any
    }

    /// Returns whether a receipt is to be sent now; `late` if it waited for an item to go with for long enough.
    pub fn owes_receipt(&self, late: bool) -> bool {
        self.receipt_due || late && self.owed > 0
    }

    /// Notes that a receipt was sent.
    pub fn receipt_sent(&mut self) {
        self.owed = 0;
        self.receipt_due = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::relay::ItemKind;

    /// Numbers from a seed (SplitMix64).
    struct Seeded(u64);

    impl Seeded {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = self.0;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (x ^ (x >> 31)) % end
        }
    }

    type Flying = (u64, Receipt, Option<(u32, Item)>);

    #[test]
    fn items_come_once_and_in_order_over_any_network() {
        for seed in 0..20 {
            let mut random = Seeded(seed);
            let mut sides = [Channel::default(), Channel::default()];
            let mut wires: [Vec<Flying>; 2] = [Vec::new(), Vec::new()];
            let (mut pushed, mut came) = ([0_u64; 2], [0_u64; 2]);
            let mut now_us = 1;
            while came != [3000; 2] {
                now_us += 1000;
                assert!(now_us < 300_000_000, "seed {seed}: {came:?} came");
                for side in 0..2 {
                    for _ in 0..random.below(40) {
                        if pushed[side] < 3000 {
                            pushed[side] += 1;
                            sides[side].push(Item::of_session(ItemKind::Claim, pushed[side]));
                        }
                    }
                    let receipt = sides[side].receipt(0);
                    let mut out = Vec::new();
                    if !sides[side]
                        .send(now_us, |number, item| out.push((receipt, Some((number, item.clone())))))
                        && sides[side].owes_receipt(true)
                    {
                        out.push((receipt, None));
                        sides[side].receipt_sent();
                    }
                    for (receipt, item) in out {
                        // A third is lost, a tenth comes twice, all come at their own time.
                        for _ in 0..[0, 1, 1, 1, 1, 1, 1, 0, 0, 2][random.below(10) as usize] {
                            let at_us = now_us + random.below(30_000);
                            wires[side].push((at_us, receipt, item.clone()));
                        }
                    }
                    let mut at = 0;
                    while at < wires[side].len() {
                        if wires[side][at].0 <= now_us {
                            let (_, receipt, item) = wires[side].swap_remove(at);
                            sides[1 - side].take(now_us, &receipt, item);
                        } else {
                            at += 1;
                        }
                    }
                    for item in std::mem::take(&mut sides[1 - side].ready) {
                        came[side] += 1;
                        assert_eq!(item.session(), Some(came[side]), "seed {seed}");
                    }
                }
            }
        }
    }
}
