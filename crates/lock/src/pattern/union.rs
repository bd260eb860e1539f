//! Unions and repetitions, by which normal forms are made.
//!
//! Both keep the invariants of [`node`](super::node): whatever overlaps or touches is merged. Where two runs
//! interleave, their union repeats with the least common multiple of their strides, so one period of it is made and
//! repeated; only what is left at the ends, and what has no common period within the range, is taken apart copy by
//! copy. The number of such steps is limited ([`Budget`]): beyond it the regions are unrolled and merged if they are few
//! enough, and a description that is made to interleave without a rhythm is refused otherwise.

use super::arithmetic::lcm;
use super::node::{Node, Run};
use super::part::{Part, compress, copies, cut, join, position};
use crate::PatternError;

/// The maximum number of copies and items into which parts are taken for one normal form.
const STEPS_MAX: usize = 1 << 18;

/// The maximum number of parts that are looked at in all unions for one normal form. Where runs whose copies lie far
/// apart interleave, parts are many although nothing is taken apart.
const LOOKS_MAX: usize = 1 << 21;

/// The maximum number of regions that are unrolled for one normal form, where taking parts apart has taken too many steps.
const UNROLLED_MAX: u64 = STEPS_MAX as u64;

/// The number of common periods of two runs from which on one of them is made and repeated.
const PERIODS_MIN: u64 = 3;

/// The maximum depth to which unions are made for unions.
const UNIONS_DEEP_MAX: usize = 200;

/// The pieces that may still be taken apart.
pub(super) struct Budget {
    steps: usize,
    looks: usize,
    unrolled: u64,
    depth: usize,
}

impl Budget {
    pub fn new() -> Budget {
        Budget { steps: STEPS_MAX, looks: LOOKS_MAX, unrolled: UNROLLED_MAX, depth: 0 }
    }

    pub fn spend(&mut self, steps: usize) -> Result<(), PatternError> {
        let left = self.steps.checked_sub(steps);
        self.steps = left.ok_or(PatternError::TooIrregular { pieces_max: STEPS_MAX })?;
        Ok(())
    }

    fn look(&mut self) -> Result<(), PatternError> {
        let left = self.looks.checked_sub(1);
        self.looks = left.ok_or(PatternError::TooIrregular { pieces_max: STEPS_MAX })?;
        Ok(())
    }
}

/// Returns the union of parts in any order, which may overlap.
pub(super) fn unite(mut parts: Vec<Part>, budget: &mut Budget) -> Result<Vec<Part>, PatternError> {
    parts.sort_unstable_by_key(|part| part.at);
    // From here on all distances are below 2^63.
    if let (Some(first), Some(end)) = (parts.first(), parts.iter().map(Part::end).max()) {
        end.checked_sub(first.at).ok_or(PatternError::Overflow { quantity: "the span of a datatype" })?;
    }
    if parts.is_sorted_by(|left, right| left.end() < right.at) {
        return Ok(compress(parts));
    }
    match unite_sorted(parts.clone(), budget) {
        Err(error @ PatternError::TooIrregular { .. }) => unrolled(&parts, 1, 0, budget).ok_or(error),
        united => united,
    }
}

/// Returns the union of copies of parts at equal distances, made of their regions one by one; nothing if they are too many.
fn unrolled(parts: &[Part], count: u64, stride: i64, budget: &mut Budget) -> Option<Vec<Part>> {
    let regions = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.node.facts().regions))?;
    let regions = regions.checked_mul(count)?;
    budget.unrolled = budget.unrolled.checked_sub(regions)?;
    let mut blocks = Vec::with_capacity(regions as usize);
    for copy in 0..count as i64 {
        for part in parts {
            add_blocks(&part.node, part.at + copy * stride, &mut blocks);
        }
    }
    blocks.sort_unstable_by_key(|block: &Part| block.at);
    Some(compress(merge_blocks(blocks)))
}

/// Adds the regions of a tree that lies at a position.
fn add_blocks(node: &Node, at: i64, blocks: &mut Vec<Part>) {
    match node {
        Node::Block(_) => blocks.push(Part::new(at, node.clone())),
        Node::Run(run) => {
            (0..run.count).for_each(|copy| add_blocks(&run.of, at + (copy * run.stride) as i64, blocks));
        }
        Node::Sequence(sequence) => {
            sequence.items.iter().for_each(|item| add_blocks(&item.node, at + item.at as i64, blocks));
        }
    }
}

/// Returns the union of parts that are sorted by their start.
fn unite_sorted(parts: Vec<Part>, budget: &mut Budget) -> Result<Vec<Part>, PatternError> {
    let mut out = Vec::with_capacity(parts.len());
    let mut parts = parts.into_iter().peekable();
    // Parts that neither overlap nor touch others stay as they are.
    while let Some(part) = parts.next() {
        let mut end = part.end();
        let mut cluster = vec![part];
        while let Some(next) = parts.next_if(|next| next.at <= end) {
            end = end.max(next.end());
            cluster.push(next);
        }
        out.extend(unite_cluster(cluster, budget)?);
    }
    Ok(compress(out))
}

/// Returns the union of parts that are sorted by their start, and of which each overlaps or touches those before it.
fn unite_cluster(mut parts: Vec<Part>, budget: &mut Budget) -> Result<Vec<Part>, PatternError> {
    if parts.len() == 1 {
        return Ok(parts);
    }
    if parts.iter().all(|part| matches!(part.node, Node::Block(_))) {
        return Ok(merge_blocks(parts));
    }
    // Halves are united first, so that a part is looked at a logarithmic number of times.
    let second = parts.split_off(parts.len() / 2);
    let (first, second) = (unite(parts, budget)?, unite(second, budget)?);
    Ok(compress(union(first, second, budget)?))
}

/// Merges blocks that are sorted by their start.
fn merge_blocks(parts: Vec<Part>) -> Vec<Part> {
    let mut out: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        match out.last_mut() {
            Some(last) if part.at <= last.end() => *last = hull(last, &part),
            _ => out.push(part),
        }
    }
    out
}

/// Returns the block from the first byte of two blocks to their last.
fn hull(left: &Part, right: &Part) -> Part {
    let start = left.at.min(right.at);
    Part::new(start, Node::Block((left.end().max(right.end()) - start) as u64))
}

/// Returns the union of two lists, each of which is in order with gaps.
fn union(left: Vec<Part>, right: Vec<Part>, budget: &mut Budget) -> Result<Vec<Part>, PatternError> {
    if budget.depth == UNIONS_DEEP_MAX {
        return Err(PatternError::TooIrregular { pieces_max: STEPS_MAX });
    }
    budget.depth += 1;
    let united = union_lists(left, right, budget);
    budget.depth -= 1;
    united
}

fn union_lists(
    mut left: Vec<Part>,
    mut right: Vec<Part>,
    budget: &mut Budget,
) -> Result<Vec<Part>, PatternError> {
    // Both are stacks from here on: the first part is on top.
    left.reverse();
    right.reverse();
    let mut out = Vec::with_capacity(left.len() + right.len());
    while let (Some(a), Some(b)) = (left.last(), right.last()) {
        budget.look()?;
        if a.end() < b.at {
            out.extend(left.pop());
            continue;
        }
        if b.end() < a.at {
            out.extend(right.pop());
            continue;
        }
        if a.at > b.at {
            std::mem::swap(&mut left, &mut right);
            continue;
        }
        // From here on `a` begins first, and they overlap or touch.
        match (&a.node, &b.node) {
            (Node::Block(_), Node::Block(_)) => {
                // The merged block goes to the list in which it ended, where what follows lies behind a gap.
                let merged = hull(a, b);
                let longer = a.end() >= b.end();
                left.pop();
                right.pop();
                if longer { &mut left } else { &mut right }.push(merged);
            }
            (Node::Run(run), _) => {
                let (run, at) = (run.clone(), a.at);
                // Copies that end before the other begins are done.
                let ahead = copies_before(&run, b.at - at);
                if ahead > 0 {
                    left.pop();
                    out.push(copies(&run, at, 0, ahead));
                    left.push(copies(&run, at, ahead, run.count as i64 - ahead));
                    continue;
                }
                if let Node::Run(other) = &b.node {
                    let (other, other_at) = (other.clone(), b.at);
                    if let Some(period) = common_period(&run, &other) {
                        left.pop();
                        right.pop();
                        let merged = interleave(
                            (&run, at),
                            (&other, other_at),
                            period,
                            [&mut left, &mut right],
                            budget,
                        )?;
                        // What is left of both overlaps the end of the merged run, at most.
                        let rest = union(take(&mut left), take(&mut right), budget)?;
                        out.extend(union(merged, rest, budget)?);
                        break;
                    }
                }
                open(&mut left, budget)?;
            }
            (Node::Sequence(_), _) => open(&mut left, budget)?,
            (Node::Block(_), _) => {
                let end = a.end();
                if b.end() <= end {
                    right.pop();
                } else {
                    // Copies that lie within the block are dropped, and the next one is taken apart.
                    if let Node::Run(run) = &b.node {
                        let (run, at) = (run.clone(), b.at);
                        let within = copies_before(&run, (end - at).saturating_add(1));
                        if within > 0 {
                            right.pop();
                            right.push(copies(&run, at, within, run.count as i64 - within));
                            continue;
                        }
                    }
                    open(&mut right, budget)?;
                }
            }
        }
    }
    out.extend(left.into_iter().rev());
    out.extend(right.into_iter().rev());
    Ok(out)
}

/// Turns a stack into a list in order, and leaves it empty.
fn take(stack: &mut Vec<Part>) -> Vec<Part> {
    let mut list = std::mem::take(stack);
    list.reverse();
    list
}

/// Takes the first part of a stack apart: a run into its first copy and the others, a sequence into its items.
fn open(stack: &mut Vec<Part>, budget: &mut Budget) -> Result<(), PatternError> {
    let Some(part) = stack.pop() else { return Ok(()) };
    match &part.node {
        Node::Block(_) => stack.push(part),
        Node::Run(run) => {
            budget.spend(1)?;
            stack.push(copies(run, part.at, 1, run.count as i64 - 1));
            stack.push(copies(run, part.at, 0, 1));
        }
        Node::Sequence(sequence) => {
            budget.spend(sequence.items.len())?;
            let items = sequence.items.iter().rev();
            stack.extend(items.map(|item| Part::new(part.at + item.at as i64, item.node.clone())));
        }
    }
    Ok(())
}

/// Returns the number of copies of a run that end before a point, without touching it.
fn copies_before(run: &Run, point: i64) -> i64 {
    let free = point - 1 - run.of.span() as i64;
    if free < 0 { 0 } else { (free / run.stride as i64 + 1).min(run.count as i64) }
}

/// Returns the distance at which the union of two runs repeats, if it does so often enough to be worth it.
fn common_period(a: &Run, b: &Run) -> Option<u64> {
    let period = lcm(a.stride, b.stride)?;
    let periods = (a.count / (period / a.stride)).min(b.count / (period / b.stride));
    (periods >= PERIODS_MIN).then_some(period)
}

/// Returns the union of two runs as far as both go on, and puts what is left of them back.
///
/// The first run begins first, and the other begins no later than the first copy ends. Copies are assigned to the
/// period in which they start, so that each period has the same ones; that they reach into the next period does not
/// matter to [`repeat`].
fn interleave(
    (a, a_at): (&Run, i64),
    (b, b_at): (&Run, i64),
    period: u64,
    stacks: [&mut Vec<Part>; 2],
    budget: &mut Budget,
) -> Result<Vec<Part>, PatternError> {
    let (a_each, b_each) = ((period / a.stride) as i64, (period / b.stride) as i64);
    let periods = (a.count as i64 / a_each).min(b.count as i64 / b_each);
    for ((run, at, each), stack) in [(a, a_at, a_each), (b, b_at, b_each)].into_iter().zip(stacks) {
        let used = periods * each;
        if used < run.count as i64 {
            stack.push(copies(run, at, used, run.count as i64 - used));
        }
    }
    budget.spend(1)?;
    let unit = union(vec![copies(a, a_at, 0, a_each)], vec![copies(b, b_at, 0, b_each)], budget)?;
    repeat(compress(unit), periods as u64, i128::from(period), budget)
}

/// Returns the union of copies of a list of parts at equal distances.
pub(super) fn repeat(
    parts: Vec<Part>,
    count: u64,
    stride: i128,
    budget: &mut Budget,
) -> Result<Vec<Part>, PatternError> {
    if parts.is_empty() || count == 0 {
        return Ok(Vec::new());
    }
    if count == 1 || stride == 0 {
        return Ok(parts);
    }
    let distance = stride
        .checked_mul(i128::from(count - 1))
        .ok_or(PatternError::Overflow { quantity: "the distance of the last copy" })?;
    // A run backwards is a run forwards from the last copy.
    let shift = distance.min(0);
    let stride = u64::try_from(stride.unsigned_abs());
    let stride = stride.map_err(|_| PatternError::Overflow { quantity: "a stride" })?;
    let parts: Vec<Part> = parts.iter().map(|part| part.shifted(shift)).collect::<Result<_, _>>()?;
    let end = distance.saturating_abs().saturating_add(i128::from(parts[parts.len() - 1].end()));
    position(end)?;
    position(end - i128::from(parts[0].at))?;
    match forwards(parts.clone(), count, stride, budget) {
        Err(error @ PatternError::TooIrregular { .. }) => {
            unrolled(&parts, count, stride as i64, budget).ok_or(error)
        }
        copied => copied,
    }
}

/// Repeats parts at a positive distance. All positions are known to be in range.
fn forwards(
    mut parts: Vec<Part>,
    count: u64,
    stride: u64,
    budget: &mut Budget,
) -> Result<Vec<Part>, PatternError> {
    if count == 1 {
        return Ok(parts);
    }
    let (start, end) = (parts[0].at, parts[parts.len() - 1].end());
    let span = (end - start) as u64;
    if span < stride {
        let Some(unit) = join(parts)? else { return Ok(Vec::new()) };
        return Ok(vec![Part::new(unit.at, Node::run(count, stride, unit.node))]);
    }
    if parts.len() == 1 {
        let Part { at, node } = parts.remove(0);
        return match &node {
            Node::Block(bytes) => Ok(vec![Part::new(at, Node::Block((count - 1) * stride + bytes))]),
            Node::Sequence(_) => {
                let mut items = vec![Part::new(at, node)];
                open(&mut items, budget)?;
                items.reverse();
                forwards(items, count, stride, budget)
            }
            Node::Run(run) if span > stride => lattice(run, at, count, stride, budget),
            Node::Run(_) => rotate(vec![Part::new(at, node)], count, stride, budget),
        };
    }
    if span == stride {
        return rotate(parts, count, stride, budget);
    }
    // Copies of a sum are the sum of the copies.
    budget.spend(parts.len())?;
    let mut copied = Vec::with_capacity(parts.len());
    for part in parts {
        copied.extend(forwards(vec![part], count, stride, budget)?);
    }
    unite(copied, budget)
}

/// Repeats parts whose last region ends where the first of the next copy begins: the first region is split off, and
/// what is repeated begins with the second and ends with the first of the next copy, which is merged.
fn rotate(parts: Vec<Part>, count: u64, stride: u64, budget: &mut Budget) -> Result<Vec<Part>, PatternError> {
    budget.spend(1)?;
    let start = parts[0].at;
    let end = parts[parts.len() - 1].end();
    let head_bytes = parts[0].node.facts().first;
    let behind = start + head_bytes as i64;
    let head = Part::new(start, Node::Block(head_bytes));
    let mut rest = Vec::with_capacity(parts.len() + 1);
    for part in &parts {
        cut(part, behind, end, &mut rest);
    }
    let next_head = vec![head.shifted(i128::from(stride))?];
    let unit = compress(union(rest.clone(), next_head, budget)?);
    let last = shifted(&rest, count - 1, stride)?;
    let mut out = vec![head];
    out.extend(forwards(unit, count - 1, stride, budget)?);
    out.extend(last);
    Ok(compress(out))
}

/// Repeats a run at a distance at which its copies interleave.
///
/// The sums of two progressions do not depend on their order: where the copies of the run's part at the new distance
/// fit into its stride, the new progression is the inner one. Where one distance is a multiple of the other, the
/// sums are one progression. Otherwise copies are united by doubling.
fn lattice(
    run: &Run,
    at: i64,
    count: u64,
    stride: u64,
    budget: &mut Budget,
) -> Result<Vec<Part>, PatternError> {
    budget.spend(1)?;
    let part = || vec![Part::new(at, run.of.clone())];
    if stride.is_multiple_of(run.stride) && stride / run.stride <= run.count {
        let longer = (count - 1) * (stride / run.stride) + run.count;
        return forwards(part(), longer, run.stride, budget);
    }
    if run.stride.is_multiple_of(stride) && run.stride / stride <= count {
        let longer = (run.count - 1) * (run.stride / stride) + count;
        return forwards(part(), longer, stride, budget);
    }
    if stride < run.stride {
        let inner = forwards(part(), count, stride, budget)?;
        let span = inner[inner.len() - 1].end() - inner[0].at;
        if span as u64 <= run.stride {
            return forwards(inner, run.count, run.stride, budget);
        }
    }
    // The longer progression is the one that is doubled, because its copies are one run.
    let (mut power, stride, count) = if run.count < count && stride < run.stride {
        (forwards(part(), count, stride, budget)?, run.stride, run.count)
    } else {
        (vec![copies(run, at, 0, run.count as i64)], stride, count)
    };
    // Doubling: the union of 2 n copies is that of n copies, and the same shifted by n strides.
    let mut done: Vec<Part> = Vec::new();
    let (mut length, mut placed, mut left) = (1_u64, 0_u64, count);
    loop {
        budget.spend(power.len())?;
        if left & 1 == 1 {
            done = compress(union(done, shifted(&power, placed, stride)?, budget)?);
            placed += length;
        }
        left >>= 1;
        if left == 0 {
            return Ok(done);
        }
        let second = shifted(&power, length, stride)?;
        power = compress(union(power, second, budget)?);
        length *= 2;
    }
}

/// Returns parts at the place of a copy.
fn shifted(parts: &[Part], copy: u64, stride: u64) -> Result<Vec<Part>, PatternError> {
    let shift = i128::from(copy) * i128::from(stride);
    parts.iter().map(|part| part.shifted(shift)).collect()
}
