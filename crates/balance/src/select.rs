//! The choice of resources for a target load: no policy in Lua is asked here.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::resource::Resource;
use crate::setting::Selector;

/// The part of a target by which one resource may miss it to be taken alone.
const CLOSE: f64 = 0.2;
/// The error of rounding in loads that fit exactly.
const ROUNDING: f64 = 1e-9;

/// Returns the positions of the resources that are to be moved so that their loads come to an amount, at most `most` of
/// them. Except by [`Selector::Fewest`], the amount is not exceeded.
pub fn select(selector: Selector, resources: &[&Resource], amount: f64, most: usize) -> Vec<usize> {
    Selection::new(resources).take(selector, amount, most, |_| true)
}

/// Resources among which targets choose one after the other. They are put in order once, so that a target into which nothing fits,
/// as most are where there are many, costs next to nothing.
pub(crate) struct Selection<'a> {
    resources: &'a [&'a Resource],
    /// The positions of those with load that no target has got, the biggest first, and equal ones in their order.
    free: Vec<usize>,
}

impl<'a> Selection<'a> {
    pub(crate) fn new(resources: &'a [&'a Resource]) -> Self {
        let mut loads: Vec<(f64, usize)> =
            resources.iter().enumerate().map(|(at, resource)| (resource.load, at)).collect();
        loads.retain(|(load, _)| *load > 0.0);
        loads.sort_unstable_by(|a, b| descending(a.0, b.0).then(a.1.cmp(&b.1)));
        Self { resources, free: loads.into_iter().map(|(_, at)| at).collect() }
    }

    /// Takes out what [`select`] chooses among those that may go.
    pub(crate) fn take(
        &mut self,
        selector: Selector,
        amount: f64,
        most: usize,
        may_go: impl Fn(&Resource) -> bool,
    ) -> Vec<usize> {
        let chosen = self.choose(selector, amount, most, |at| may_go(self.resources[at]));
        if !chosen.is_empty() {
            let mut is_chosen = vec![false; self.resources.len()];
            chosen.iter().for_each(|at| is_chosen[*at] = true);
            self.free.retain(|at| !is_chosen[*at]);
        }
        chosen
    }

    fn choose(
        &self,
        selector: Selector,
        amount: f64,
        most: usize,
        may_go: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let left = amount * (1.0 + ROUNDING);
        // Even the smallest one may exceed what is left, and no selector goes further beyond a target than this.
        let Some(smallest) = self.free.last().map(|at| self.load(*at)) else { return Vec::new() };
        if most == 0 || smallest > left.max(amount * (1.0 + CLOSE)) {
            return Vec::new();
        }
        let first = self.free.partition_point(|at| self.load(*at) > left);
        let fitting = self.free[first..].iter().copied().filter(|at| may_go(*at));
        match selector {
            Selector::Biggest => self.fill(fitting, left, most),
            Selector::Fewest => {
                let missed = |at: &usize| (self.load(*at) - amount).abs();
                let all = self.free.iter().copied().filter(|at| may_go(*at));
                let closest = all.min_by(|a, b| missed(a).total_cmp(&missed(b)).then(a.cmp(b)));
                match closest.filter(|at| missed(at) <= CLOSE * amount) {
                    Some(closest) => vec![closest],
                    None => self.fill(fitting, left, most),
                }
            }
            Selector::Locality => {
                let mut order: Vec<usize> = self.free.iter().copied().filter(|at| may_go(*at)).collect();
                let mut directories: HashMap<&str, f64> = HashMap::new();
                for at in &order {
                    *directories.entry(directory(self.resources[*at])).or_default() += self.load(*at);
                }
                // Those that fit as a whole come first, and the rest is filled up from as few of the others as possible. Within a
                // directory the order stays.
                let rank = |at: &usize| {
                    let name = directory(self.resources[*at]);
                    let load = directories.get(name).copied().unwrap_or_default();
                    (load > left, load, name)
                };
                order.sort_by(|a, b| {
                    let ((a_over, a_load, a_name), (b_over, b_load, b_name)) = (rank(a), rank(b));
                    a_over.cmp(&b_over).then(descending(a_load, b_load)).then(a_name.cmp(b_name))
                });
                self.fill(order.into_iter(), left, most)
            }
        }
    }

    /// Returns those that fit, one after the other, into what is left.
    fn fill(&self, order: impl Iterator<Item = usize>, mut left: f64, most: usize) -> Vec<usize> {
        let smallest = self.free.last().map_or(0.0, |at| self.load(*at));
        let mut chosen = Vec::new();
        for at in order {
            if chosen.len() == most || left < smallest {
                break;
            }
            if self.load(at) <= left {
                left -= self.load(at);
                chosen.push(at);
            }
        }
        chosen
    }

    fn load(&self, at: usize) -> f64 {
        self.resources[at].load
    }
}

fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

/// Returns what resources that belong together have in common: the path above the last slash.
fn directory(resource: &Resource) -> &str {
    resource.id.name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(selector: Selector, amount: f64, most: usize, loads: &[(&str, f64)]) -> Vec<String> {
        let resources: Vec<Resource> =
            loads.iter().map(|(name, load)| Resource { id: name.parse().unwrap(), load: *load }).collect();
        let resources: Vec<&Resource> = resources.iter().collect();
        let chosen = select(selector, &resources, amount, most);
        chosen.into_iter().map(|at| resources[at].id.name.to_string()).collect()
    }

    #[test]
    fn each_selector_chooses_as_it_says() {
        let loads = [
            ("subtree:/a/1", 4.0),
            ("subtree:/a/2", 3.0),
            ("subtree:/b/1", 5.0),
            ("subtree:/b/2", 9.0),
            ("subtree:/c", 0.0),
        ];
        assert_eq!(names(Selector::Biggest, 8.0, 9, &loads), ["/b/1", "/a/2"]);
        assert_eq!(names(Selector::Fewest, 8.0, 9, &loads), ["/b/2"]);
        assert_eq!(
            names(Selector::Fewest, 7.2, 9, &loads),
            ["/b/1"],
            "nothing is close, and the biggest that fits is"
        );
        assert_eq!(names(Selector::Locality, 8.0, 9, &loads), ["/a/1", "/a/2"]);
        assert_eq!(names(Selector::Biggest, 100.0, 2, &loads), ["/b/2", "/b/1"]);
        assert!(names(Selector::Biggest, 1.0, 9, &loads).is_empty());
        assert!(names(Selector::Fewest, 9.0, 0, &loads).is_empty());
    }

    #[test]
    fn what_one_target_got_is_not_there_for_the_next() {
        let loads = [5.0, 1.0, 3.0, 3.0, 0.0];
        let list: Vec<Resource> = loads
            .iter()
            .enumerate()
            .map(|(number, load)| Resource { id: format!("group:{number}").parse().unwrap(), load: *load })
            .collect();
        let list: Vec<&Resource> = list.iter().collect();
        let mut selection = Selection::new(&list);
        assert!(selection.take(Selector::Biggest, 0.5, 9, |_| true).is_empty());
        assert_eq!(selection.take(Selector::Biggest, 4.0, 9, |resource| &*resource.id.name != "2"), [3, 1]);
        assert_eq!(
            selection.take(Selector::Fewest, 4.5, 9, |_| true),
            [0],
            "it is close, and a little bigger"
        );
        assert_eq!(selection.take(Selector::Locality, 9.0, 9, |_| true), [2]);
        assert!(selection.take(Selector::Biggest, 9.0, 9, |_| true).is_empty());
    }

    #[test]
    fn half_of_two_equal_ones_is_one() {
        let loads = [("sequencer:a", 0.1), ("sequencer:b", 0.1)];
        assert_eq!(names(Selector::Biggest, (0.1 + 0.1) / 2.0, 9, &loads), ["a"]);
    }
}
