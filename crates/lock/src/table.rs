//! The lock table of one file (section 5.2 of the paper): who holds which bytes, and who waits for which byte.
//!
//! A *request* asks for the bytes of a pattern, for one *operation* of one program, shared or exclusive. It is granted
//! in file order, so what it holds is always the part of its pattern before some offset, its `next`. A request that may
//! wait and meets a byte that it cannot have stands in line for that byte, and for no other:
//!
//! - A byte is refused where another operation holds it in a conflicting mode, or where another operation stands in line
//!   for it in a conflicting mode and came before. So waiters are served first come, first served, and readers that
//!   arrive later do not starve a writer that waits. A request that cannot wait stops at the same places.
//! - A request does not queue behind the whole pattern of a waiter: what lies behind the byte where the waiter stands is
//!   free until the waiter reaches it.
//! - Requests of one operation never conflict with each other. They share one place in a line.
//!
//! Freedom from deadlock: who waits at a byte holds only bytes before it (the clients see to that across servers), and
//! waits for operations that hold this byte or stand in line for it earlier. Along such a chain the pair of byte waited
//! for and place in line only rises, so it cannot close. This holds for operations; a program that holds one guard while
//! it asks for another can deadlock, which the server finds.
//!
//! What is held is indexed by one interval tree for each mode, either over the bounding ranges of the patterns, which
//! are then compared as they are, or over every region as the paper has it ([`Indexing`]).
//!
//! A call does a bounded number of steps for the requests of others. The rest of that work waits, in order, for
//! [`Table::resume`]: lines that are still to be served, and requests that were served and are to go on behind their byte.
//! The latter hold what they have, and stand in no line meanwhile.
//!
//! Invariants: no two operations hold a byte in conflicting modes; the first of every line that is not left over is refused by
//! a holder of its byte, so nobody stands in line for a byte that is free.

mod answer;
mod holding;
mod line;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};

pub use answer::{AcquireOutcome, Acquired, RequestView, ResumedRequest, TableError};
pub(crate) use holding::Budget;
use holding::{Holdings, Stop};
use line::Line;

use crate::{OFFSET_MAX, Pattern};

/// The number of a request, unique in its table.
pub type RequestKey = u64;

/// The end of an attempt to grant a request more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    /// All that was asked for is held.
    Reached,
    /// The next byte is refused for now.
    Refused,
    /// The comparison with what is held took too long.
    Exhausted,
}

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Any number of operations may hold a byte.
    Shared,
    /// One operation holds a byte, and nobody else.
    Exclusive,
}

impl Mode {
    /// Returns whether two operations may not hold a byte in these modes at once.
    pub fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }
}

/// The way in which a table indexes what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indexing {
    /// Bounding ranges in the tree, patterns compared without unrolling them.
    #[default]
    Described,
    /// Every region in the tree (section 5.2 of the paper).
    Unrolled,
}

/// An operation of a program: the unit that conflicts with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The program, which may have several operations under way.
    pub program: u64,
    /// The operation, unique in the program.
    pub operation: u64,
}

/// A request in the table.
#[derive(Clone, Debug)]
struct Request {
    owner: Owner,
    mode: Mode,
    pattern: Pattern,
    /// The first byte of the pattern.
    low: u64,
    /// The end of the pattern's last byte.
    end: u64,
    /// The first byte that is not held; [`OFFSET_MAX`] when all are.
    next: u64,
    waiting: Option<Box<Waiting>>,
}

type Requests = HashMap<RequestKey, Box<Request>, foldhash::fast::RandomState>;

/// The wait of a request for its `next`.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Its place in the line, or among what is left over.
    ticket: u64,
    until: u64,
    /// True if it stands in no line, but goes on later.
    left_over: bool,
}

/// Work that a call left over.
#[derive(Clone, Copy, Debug)]
enum LeftOver {
    /// A request that was served and is to go on.
    Request(RequestKey),
    /// The line for a byte, whose first may be able to have it.
    Line(u64),
}

impl Request {
    /// The end, exclusive, of what is held at most: a byte of the pattern is held if and only if it is below.
    fn bound(&self) -> u64 {
        self.next.min(self.end)
    }

    fn holds_nothing(&self) -> bool {
        self.next <= self.low
    }

    fn progress(&self) -> Acquired {
        let last = if self.holds_nothing() { None } else { self.pattern.end_before(self.bound()) };
        Acquired { last: last.map(|end| end - 1), next: (self.next < OFFSET_MAX).then_some(self.next) }
    }

    /// The first byte of the pattern at or after an offset, or [`OFFSET_MAX`].
    fn byte_at(&self, offset: u64) -> u64 {
        if offset >= self.end {
            return OFFSET_MAX;
        }
        self.pattern.next_region(offset).map_or(OFFSET_MAX, |region| region.offset)
    }
}

/// The lock table of one file.
#[derive(Clone, Debug)]
pub struct Table {
    /// Boxed, so that the room that a hash table keeps free is small.
    requests: Requests,
    /// The number of requests and the mode of each operation.
    operations: HashMap<Owner, (u32, Mode), foldhash::fast::RandomState>,
    held: Holdings,
    lines: BTreeMap<u64, Line>,
    tickets: u64,
    /// The work that calls left over, by tickets.
    left_over: BTreeMap<u64, LeftOver>,
    /// The bytes whose lines are left over.
    unserved: BTreeSet<u64>,
    waiters: usize,
    /// The requests that were served and wait again, for a later byte.
    moved: Vec<RequestKey>,
}

impl Table {
    /// Creates an empty table. An unrolled one takes patterns of up to `regions_max` regions.
    pub fn new(indexing: Indexing, regions_max: u64) -> Self {
        Self {
            requests: HashMap::default(),
            operations: HashMap::default(),
            held: Holdings::new(indexing, regions_max),
            lines: BTreeMap::new(),
            tickets: 0,
            left_over: BTreeMap::new(),
            unserved: BTreeSet::new(),
            waiters: 0,
            moved: Vec::new(),
        }
    }

    /// The number of requests, whether they hold anything or not.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether the table has no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The number of requests that wait: in a line, or for [`Table::resume`].
    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// The number of ranges in the interval trees.
    pub fn ranges(&self) -> usize {
        self.held.len()
    }

    /// Returns whether there is a request with this number.
    pub fn contains(&self, request: RequestKey) -> bool {
        self.requests.contains_key(&request)
    }

    /// Adds a request that holds nothing yet.
    ///
    /// # Errors
    ///
    /// [`TableError::Exists`], [`TableError::MixedModes`], [`TableError::TooManyRegions`].
    pub fn add(
        &mut self,
        request: RequestKey,
        owner: Owner,
        mode: Mode,
        pattern: Pattern,
    ) -> Result<(), TableError> {
        if self.requests.contains_key(&request) {
            return Err(TableError::Exists);
        }
        if self.operations.get(&owner).is_some_and(|operation| operation.1 != mode) {
            return Err(TableError::MixedModes);
        }
        self.held.admit(&pattern)?;
        let (low, end) =
            pattern.bounds().map_or((OFFSET_MAX, OFFSET_MAX), |region| (region.offset, region.end()));
        self.operations.entry(owner).or_insert((0, mode)).0 += 1;
        let added = Request { owner, mode, pattern, low, end, next: low, waiting: None };
        self.requests.insert(request, Box::new(added));
        Ok(())
    }

    /// Adds a request that holds its pattern below an offset already, as a client asserts after a restart.
    ///
    /// # Errors
    ///
    /// Those of [`Table::add`], and [`TableError::Held`] if another operation holds one of these bytes.
    pub fn install(
        &mut self,
        request: RequestKey,
        owner: Owner,
        mode: Mode,
        pattern: Pattern,
        below: u64,
    ) -> Result<Acquired, TableError> {
        self.add(request, owner, mode, pattern)?;
        let added = &self.requests[&request];
        let (low, next) = (added.low, added.byte_at(below));
        let mut budget = Budget::new();
        let mut from = low;
        let refused = loop {
            match self.held.conflict(&self.requests, &self.requests[&request], from, below, &mut budget) {
                Stop::Nowhere => break None,
                Stop::Held(byte) => break Some(TableError::Held(byte)),
                Stop::Paused(offset) if budget.double() => from = offset,
                Stop::Paused(_) => break Some(TableError::TooIrregular),
            }
        };
        if let Some(error) = refused {
            self.forget(request);
            return Err(error);
        }
        self.set_next(request, next);
        Ok(self.requests[&request].progress())
    }

    /// Grants a request as much as it can have without waiting, up to the first conflict.
    ///
    /// # Errors
    ///
    /// [`TableError::Unknown`], [`TableError::Waits`], [`TableError::TooIrregular`]; what was granted before the last
    /// of these stays so.
    pub fn try_acquire(&mut self, request: RequestKey) -> Result<Acquired, TableError> {
        self.idle(request)?;
        if self.advance(request, OFFSET_MAX, &mut Budget::new()) == Advance::Exhausted {
            return Err(TableError::TooIrregular);
        }
        Ok(self.requests[&request].progress())
    }

    /// Grants a request its pattern below an offset, and nothing beyond; it waits for what it cannot have at once.
    ///
    /// # Errors
    ///
    /// [`TableError::Unknown`], [`TableError::Waits`], [`TableError::TooIrregular`].
    pub fn acquire(&mut self, request: RequestKey, until: u64) -> Result<AcquireOutcome, TableError> {
        self.acquire_within(request, until, &mut Budget::new())
    }

    /// Does as [`Table::acquire`], in the steps that others left; if they do not suffice it waits for [`Table::resume`].
    pub(crate) fn acquire_within(
        &mut self,
        request: RequestKey,
        until: u64,
        budget: &mut Budget,
    ) -> Result<AcquireOutcome, TableError> {
        self.idle(request)?;
        let until = until.min(OFFSET_MAX);
        let has_all_steps = budget.begin();
        match self.advance(request, until, budget) {
            Advance::Reached => Ok(AcquireOutcome::Done(self.requests[&request].progress())),
            Advance::Exhausted if has_all_steps => Err(TableError::TooIrregular),
            advance => {
                match advance {
                    Advance::Refused => self.stand(request, until),
                    _ => self.leave_over(request, until),
                }
                Ok(AcquireOutcome::Waits(self.requests[&request].progress()))
            }
        }
    }

    /// Releases what a request holds from an offset on. A request that waits does so no longer. The requests that this
    /// wakes are appended to `woken`.
    ///
    /// # Errors
    ///
    /// [`TableError::Unknown`].
    pub fn release_from(
        &mut self,
        request: RequestKey,
        offset: u64,
        woken: &mut Vec<ResumedRequest>,
    ) -> Result<Acquired, TableError> {
        self.release_from_within(request, offset, &mut Budget::new(), woken)
    }

    /// Does as [`Table::release_from`], in the steps that are left.
    pub(crate) fn release_from_within(
        &mut self,
        request: RequestKey,
        offset: u64,
        budget: &mut Budget,
        woken: &mut Vec<ResumedRequest>,
    ) -> Result<Acquired, TableError> {
        if !self.requests.contains_key(&request) {
            return Err(TableError::Unknown);
        }
        self.leave(request, budget, woken);
        let released = &self.requests[&request];
        let next = released.byte_at(offset.max(released.low));
        if next < released.next {
            let bound = released.bound();
            self.set_next(request, next);
            self.wake(request, next, bound, budget, woken);
        }
        Ok(self.requests[&request].progress())
    }

    /// Releases all that a request holds and forgets it, whether it waits or not. The requests that this wakes are
    /// appended to `woken`.
    ///
    /// # Errors
    ///
    /// [`TableError::Unknown`].
    pub fn release(
        &mut self,
        request: RequestKey,
        woken: &mut Vec<ResumedRequest>,
    ) -> Result<(), TableError> {
        self.release_within(request, &mut Budget::new(), woken)
    }

    /// Does as [`Table::release`], in the steps that are left.
    pub(crate) fn release_within(
        &mut self,
        request: RequestKey,
        budget: &mut Budget,
        woken: &mut Vec<ResumedRequest>,
    ) -> Result<(), TableError> {
        if !self.requests.contains_key(&request) {
            return Err(TableError::Unknown);
        }
        self.leave(request, budget, woken);
        let released = &self.requests[&request];
        if !released.holds_nothing() {
            let (low, bound) = (released.low, released.bound());
            self.set_next(request, low);
            self.wake(request, low, bound, budget, woken);
        }
        self.forget(request);
        Ok(())
    }

    /// Returns whether calls left work over for [`Table::resume`].
    pub fn has_left_over(&self) -> bool {
        !self.left_over.is_empty()
    }

    /// Goes on with what calls left over, in order, for a bounded number of steps. The requests that this wakes are appended
    /// to `woken`.
    pub fn resume(&mut self, woken: &mut Vec<ResumedRequest>) {
        self.resume_within(&mut Budget::new(), woken);
    }

    /// Does as [`Table::resume`], in the steps that are left.
    pub(crate) fn resume_within(&mut self, budget: &mut Budget, woken: &mut Vec<ResumedRequest>) {
        while !budget.is_spent()
            && let Some((place, left_over)) = self.left_over.pop_first()
        {
            match left_over {
                LeftOver::Line(byte) => {
                    self.unserved.remove(&byte);
                    self.serve(byte, budget, woken);
                }
                LeftOver::Request(request) => {
                    let waiting = self.requests.get_mut(&request).and_then(|found| found.waiting.take());
                    let Some(waiting) = waiting else { continue };
                    self.waiters -= 1;
                    self.go_on(request, waiting.until, Some(place), budget, woken);
                }
            }
        }
    }

    /// Returns the progress of a request.
    pub fn progress(&self, request: RequestKey) -> Option<Acquired> {
        self.requests.get(&request).map(|found| found.progress())
    }

    /// A request as the listing shows it.
    pub fn view(&self, request: RequestKey) -> Option<RequestView> {
        let found = self.requests.get(&request)?;
        Some(RequestView {
            request,
            owner: found.owner,
            mode: found.mode,
            bounds: (found.low, found.end),
            progress: found.progress(),
            waits: found.waiting.is_some(),
        })
    }

    /// All requests, in no order.
    pub fn views(&self) -> impl Iterator<Item = RequestView> + '_ {
        self.requests.keys().filter_map(|request| self.view(*request))
    }

    /// The pattern of a request.
    pub fn pattern(&self, request: RequestKey) -> Option<&Pattern> {
        self.requests.get(&request).map(|found| &found.pattern)
    }

    /// The requests that stand in line for a byte, in the order in which they are served.
    pub fn line(&self, byte: u64) -> impl Iterator<Item = RequestKey> + '_ {
        self.lines.get(&byte).into_iter().flat_map(Line::requests)
    }

    /// Calls `visit` with the holders, of other operations, of the byte that a request waits for, until it returns
    /// false.
    pub fn blockers(&self, request: RequestKey, mut visit: impl FnMut(RequestKey, Owner) -> bool) {
        let Some(waiting) = self.requests.get(&request).filter(|found| found.waiting.is_some()) else {
            return;
        };
        self.held.holders(&self.requests, waiting, waiting.next, |holder| {
            visit(holder, self.requests[&holder].owner)
        });
    }

    /// Takes the requests that have moved on to the line of a later byte since the last call.
    pub fn take_moved(&mut self) -> Vec<RequestKey> {
        std::mem::take(&mut self.moved)
    }

    fn idle(&self, request: RequestKey) -> Result<(), TableError> {
        match self.requests.get(&request) {
            None => Err(TableError::Unknown),
            Some(found) if found.waiting.is_some() => Err(TableError::Waits),
            Some(_) => Ok(()),
        }
    }

    /// Grants as much as can be had below `until`.
    fn advance(&mut self, request: RequestKey, until: u64, budget: &mut Budget) -> Advance {
        loop {
            let asking = &self.requests[&request];
            let from = asking.next;
            if from >= until {
                return Advance::Reached;
            }
            let mut stop = self.held.conflict(&self.requests, asking, from, until, budget);
            let searched = match stop {
                Stop::Nowhere => until,
                Stop::Held(byte) | Stop::Paused(byte) => byte,
            };
            if let Some(byte) = self.line_in_the_way(asking, from, searched, budget) {
                stop = Stop::Held(byte);
            }
            let next = match stop {
                Stop::Nowhere => asking.byte_at(until),
                Stop::Held(byte) => byte,
                Stop::Paused(byte) => asking.byte_at(byte),
            };
            self.set_next(request, next);
            match stop {
                Stop::Nowhere => return Advance::Reached,
                Stop::Held(_) => return Advance::Refused,
                Stop::Paused(_) if budget.double() => {}
                Stop::Paused(_) => return Advance::Exhausted,
            }
        }
    }

    /// The first byte of a request's pattern in `from..to` where others stand in line before it.
    fn line_in_the_way(&self, asking: &Request, from: u64, to: u64, budget: &mut Budget) -> Option<u64> {
        let mut at = from;
        while at < to && !self.lines.is_empty() {
            // The lines and the regions leap over each other.
            let (&byte, line) = self.lines.range(at..to).next()?;
            budget.spend(1);
            let region = asking.byte_at(byte);
            if region != byte {
                at = region;
                continue;
            }
            if line.refuses(asking.owner, asking.mode)
                && !self.held.held_by_operation(&self.requests, asking, byte)
            {
                return Some(byte);
            }
            at = byte + 1;
        }
        None
    }

    /// Puts a request in line for its next byte.
    fn stand(&mut self, request: RequestKey, until: u64) {
        let (next, owner, mode) = {
            let waiting = &self.requests[&request];
            (waiting.next, waiting.owner, waiting.mode)
        };
        self.tickets += 1;
        let ticket = self.lines.entry(next).or_default().join(self.tickets, request, owner, mode);
        self.waiters += 1;
        if let Some(waiting) = self.requests.get_mut(&request) {
            waiting.waiting = Some(Box::new(Waiting { ticket, until, left_over: false }));
        }
    }

    /// Leaves a request over, which has come as far as the steps sufficed, in the last place.
    fn leave_over(&mut self, request: RequestKey, until: u64) {
        self.tickets += 1;
        self.leave_over_at(self.tickets, request, until);
    }

    fn leave_over_at(&mut self, ticket: u64, request: RequestKey, until: u64) {
        self.left_over.insert(ticket, LeftOver::Request(request));
        self.waiters += 1;
        if let Some(waiting) = self.requests.get_mut(&request) {
            waiting.waiting = Some(Box::new(Waiting { ticket, until, left_over: true }));
        }
    }

    /// Takes a request out of its line, or of what is left over. Returns the wait that ended.
    fn step_out(&mut self, request: RequestKey) -> Option<Box<Waiting>> {
        let leaving = self.requests.get_mut(&request)?;
        let waiting = leaving.waiting.take()?;
        self.waiters -= 1;
        if waiting.left_over {
            self.left_over.remove(&waiting.ticket);
            return Some(waiting);
        }
        let (byte, owner, mode) = (leaving.next, leaving.owner, leaving.mode);
        if let Some(line) = self.lines.get_mut(&byte) {
            line.leave(waiting.ticket, request, owner, mode);
            if line.is_empty() {
                self.lines.remove(&byte);
            }
        }
        Some(waiting)
    }

    /// Ends the wait of a request, if it waits; those behind it may be served then.
    fn leave(&mut self, request: RequestKey, budget: &mut Budget, woken: &mut Vec<ResumedRequest>) {
        let byte = self.requests[&request].next;
        if self.step_out(request).is_some() {
            self.serve(byte, budget, woken);
        }
    }

    /// Serves the lines at the bytes of a request's pattern in `from..to`, which it has just released.
    fn wake(
        &mut self,
        request: RequestKey,
        from: u64,
        to: u64,
        budget: &mut Budget,
        woken: &mut Vec<ResumedRequest>,
    ) {
        let mut at = from;
        while at < to {
            let Some((&byte, _)) = self.lines.range(at..to).next() else { return };
            let region = self.requests[&request].byte_at(byte);
            if region == byte {
                self.serve(byte, budget, woken);
                at = byte + 1;
            } else {
                at = region;
            }
        }
    }

    /// Grants a byte to those who stand in line for it, in order, until one cannot have it. Leaves the line over when no steps
    /// are left.
    fn serve(&mut self, byte: u64, budget: &mut Budget, woken: &mut Vec<ResumedRequest>) {
        while let Some(request) = self.lines.get(&byte).and_then(Line::first) {
            if budget.is_spent() && self.unserved.insert(byte) {
                self.tickets += 1;
                self.left_over.insert(self.tickets, LeftOver::Line(byte));
            }
            if self.unserved.contains(&byte) {
                return;
            }
            let mut refused = false;
            let looks = self.held.holders(&self.requests, &self.requests[&request], byte, |_| {
                refused = true;
                false
            });
            budget.spend_on_turn(looks);
            if refused {
                return;
            }
            let Some(waiting) = self.step_out(request) else { return };
            // It takes the byte before anything else: those behind it in this line are in nobody's way, but would
            // seem to be in its own.
            let next = self.requests[&request].byte_at(byte + 1);
            self.set_next(request, next);
            self.go_on(request, waiting.until, None, budget, woken);
        }
    }

    /// Grants a request that has been served as much more as it can have. `place` is its place if it was left over before.
    fn go_on(
        &mut self,
        request: RequestKey,
        until: u64,
        place: Option<u64>,
        budget: &mut Budget,
        woken: &mut Vec<ResumedRequest>,
    ) {
        let has_all_steps = budget.begin();
        match self.advance(request, until, budget) {
            Advance::Refused => {
                self.stand(request, until);
                self.moved.push(request);
            }
            // It is refused for what it takes itself, and not for what others took before it.
            Advance::Exhausted if !has_all_steps => match place {
                Some(place) => self.leave_over_at(place, request, until),
                None => self.leave_over(request, until),
            },
            advance => woken.push(ResumedRequest {
                request,
                progress: self.requests[&request].progress(),
                exhausted: advance == Advance::Exhausted,
            }),
        }
    }

    fn set_next(&mut self, request: RequestKey, next: u64) {
        if let Some(changed) = self.requests.get_mut(&request) {
            let before = changed.next;
            changed.next = next;
            if before != next {
                self.held.change(request, &self.requests[&request], before);
            }
        }
    }

    /// Drops a request that holds nothing and does not wait.
    fn forget(&mut self, request: RequestKey) {
        let Some(gone) = self.requests.remove(&request) else { return };
        self.held.forget(request);
        if let Some(operation) = self.operations.get_mut(&gone.owner) {
            operation.0 -= 1;
            if operation.0 == 0 {
                self.operations.remove(&gone.owner);
            }
        }
    }
}
