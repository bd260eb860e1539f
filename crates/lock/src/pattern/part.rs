//! Trees at positions, and the lists of them that the making of a normal form works on.
//!
//! Positions are signed: a datatype may have bytes before its origin, as long as the file view that it ends up in
//! has none before the start of the file.

use super::node::{Item, Node, Run};
use crate::PatternError;

/// A tree at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub at: i64,
    pub node: Node,
}

/// The number of times that a pattern of a few parts must repeat in a list before it becomes a run.
const REPEATS_MIN: usize = 3;

/// The maximum number of parts of a pattern that is looked for in a list.
const PERIOD_MAX: usize = 8;

impl Part {
    pub fn new(at: i64, node: Node) -> Part {
        Part { at, node }
    }

    /// Returns the position behind the last byte. Parts are only made where it is in range.
    pub fn end(&self) -> i64 {
        self.at + self.node.span() as i64
    }

    /// Returns this part at another position.
    pub fn shifted(&self, by: i128) -> Result<Part, PatternError> {
        let at = position(by.saturating_add(i128::from(self.at)))?;
        position(i128::from(at) + i128::from(self.node.span()))?;
        Ok(Part { at, node: self.node.clone() })
    }
}

/// Returns a position as a number of 64 bits.
pub(super) fn position(position: i128) -> Result<i64, PatternError> {
    i64::try_from(position).map_err(|_| PatternError::Overflow { quantity: "a displacement" })
}

/// Makes one part of parts in order with gaps between them; none of none.
pub(super) fn join(mut parts: Vec<Part>) -> Result<Option<Part>, PatternError> {
    let Some(first) = parts.first() else { return Ok(None) };
    if parts.len() == 1 {
        return Ok(parts.pop());
    }
    let start = first.at;
    // Two ends of a pattern may be further apart than a signed number can say.
    let end = parts[parts.len() - 1].end();
    end.checked_sub(start).ok_or(PatternError::Overflow { quantity: "the span of a datatype" })?;
    let mut items = Vec::with_capacity(parts.len());
    for part in parts {
        items.push(Item { at: (part.at - start) as u64, node: part.node });
    }
    Ok(Some(Part::new(start, Node::sequence(items))))
}

/// Adds the bytes of a part that lie within two positions.
pub(super) fn cut(part: &Part, from: i64, to: i64, out: &mut Vec<Part>) {
    if part.end() <= from || part.at >= to {
        return;
    }
    if part.at >= from && part.end() <= to {
        out.push(part.clone());
        return;
    }
    match &part.node {
        Node::Block(_) => {
            let (start, end) = (part.at.max(from), part.end().min(to));
            out.push(Part::new(start, Node::Block((end - start) as u64)));
        }
        Node::Run(run) => {
            let stride = run.stride as i64;
            let copy = |k: i64| Part::new(part.at + k * stride, run.of.clone());
            // The copies from `first` to `last` overlap the range; only these two may be cut.
            let first = from.saturating_sub(part.at).max(0) / stride;
            let last = ((to.min(part.end()) - 1 - part.at) / stride).min(run.count as i64 - 1);
            if first == last {
                return cut(&copy(first), from, to, out);
            }
            let whole_first = copy(first).at >= from;
            let whole_last = copy(last).end() <= to;
            if !whole_first {
                cut(&copy(first), from, to, out);
            }
            let (low, high) = (first + i64::from(!whole_first), last - i64::from(!whole_last));
            if low <= high {
                out.push(copies(run, part.at, low, high - low + 1));
            }
            if !whole_last {
                cut(&copy(last), from, to, out);
            }
        }
        Node::Sequence(sequence) => {
            for item in &sequence.items {
                cut(&Part::new(part.at + item.at as i64, item.node.clone()), from, to, out);
            }
        }
    }
}

/// Returns some copies of a run that lies at a position: a number of them, from one on.
pub(super) fn copies(run: &Run, at: i64, first: i64, count: i64) -> Part {
    let at = at + first * run.stride as i64;
    if count == 1 {
        return Part::new(at, run.of.clone());
    }
    Part::new(at, Node::run(count as u64, run.stride, run.of.clone()))
}

/// Turns what is regular in a list of parts into runs. The parts are in order with gaps, and so are the results.
pub(super) fn compress(mut parts: Vec<Part>) -> Vec<Part> {
    while parts.len() > 1 {
        let before = parts.len();
        parts = runs(lengthen(parts));
        if parts.len() == before {
            break;
        }
    }
    parts
}

/// Lengthens runs by what follows or precedes them in their rhythm.
fn lengthen(parts: Vec<Part>) -> Vec<Part> {
    if !parts.iter().any(|part| matches!(part.node, Node::Run(_))) {
        return parts;
    }
    let mut out: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        match out.last_mut() {
            Some(last) => match follow(last, &part) {
                Some(longer) => *last = longer,
                None => out.push(part),
            },
            None => out.push(part),
        }
    }
    out
}

/// Returns the run that two neighbours are together, if one of them is a run that the other goes on with.
fn follow(left: &Part, right: &Part) -> Option<Part> {
    let continued = |run: &Run, more: u64| {
        Some(Part::new(left.at, Node::run(run.count + more, run.stride, run.of.clone())))
    };
    let next = |run: &Run| left.at.checked_add_unsigned(run.count.checked_mul(run.stride)?);
    if let Node::Run(run) = &left.node
        && next(run) == Some(right.at)
    {
        if run.of == right.node {
            return continued(run, 1);
        }
        if let Node::Run(other) = &right.node
            && other.stride == run.stride
            && other.of == run.of
        {
            return continued(run, other.count);
        }
    }
    match &right.node {
        Node::Run(run)
            if left.at.checked_add_unsigned(run.stride) == Some(right.at) && run.of == left.node =>
        {
            continued(run, 1)
        }
        _ => None,
    }
}

/// Replaces patterns of up to [`PERIOD_MAX`] parts that repeat at equal distances by runs.
fn runs(parts: Vec<Part>) -> Vec<Part> {
    let mut out = Vec::with_capacity(parts.len());
    let places: Vec<i64> = parts.iter().map(|part| part.at).collect();
    let mut at = 0;
    'parts: while at < parts.len() {
        // In an irregular list there is nothing but this.
        if !may_repeat(&places[at..]) {
            out.push(parts[at].clone());
            at += 1;
            continue;
        }
        let rest = &parts[at..];
        for period in 1..=PERIOD_MAX.min(rest.len() / REPEATS_MIN) {
            let repeats = repeats(rest, period);
            if repeats < REPEATS_MIN {
                continue;
            }
            let stride = (rest[period].at - rest[0].at) as u64;
            // A part of the list has been joined before, at a greater distance from its ends.
            if let Ok(Some(unit)) = join(rest[..period].to_vec()) {
                out.push(Part::new(unit.at, Node::run(repeats as u64, stride, unit.node)));
                at += period * repeats;
                continue 'parts;
            }
        }
        out.push(parts[at].clone());
        at += 1;
    }
    out
}

/// Returns false if the first of some places cannot begin a pattern of up to [`PERIOD_MAX`] of them that repeats.
fn may_repeat(places: &[i64]) -> bool {
    match places.first_chunk::<{ 2 * PERIOD_MAX + 1 }>() {
        // All at once, without a branch for each.
        Some(places) => (1..=PERIOD_MAX).fold(false, |may, period| {
            let (next, after) = (places[period], places[2 * period]);
            may | (next.wrapping_sub(places[0]) == after.wrapping_sub(next))
        }),
        // Few are left, which are compared one by one.
        None => true,
    }
}

/// Returns how often the first parts of a list repeat at equal distances; the list is at least two periods long.
fn repeats(parts: &[Part], period: usize) -> usize {
    let Some(stride) = parts[period].at.checked_sub(parts[0].at) else { return 1 };
    if parts[2 * period].at.checked_sub(parts[period].at) != Some(stride) {
        return 1;
    }
    let mut count = period;
    while count < parts.len()
        && parts[count].at.checked_sub(parts[count - period].at) == Some(stride)
        && parts[count].node == parts[count - period].node
    {
        count += 1;
    }
    count / period
}
