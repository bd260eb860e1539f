//! A vector of very many elements, which grows by pages: none is ever moved, so growing it delays no datagrams
//! and leaves no holes in the memory of the process.

use std::ops::{Index, IndexMut};

/// The number of elements of a page.
const PAGE: usize = 1024;

/// A vector that grows by pages.
#[derive(Clone, Debug)]
pub struct Pages<T>(Vec<Vec<T>>);

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Pages(Vec::new())
    }
}

impl<T> Pages<T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * PAGE + last.len())
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an element at the end.
    pub fn push(&mut self, value: T) {
        match self.0.last_mut() {
            Some(last) if last.len() < PAGE => last.push(value),
            _ => {
                // The first page grows, as most tables stay small.
                let mut page = Vec::with_capacity(if self.0.is_empty() { 0 } else { PAGE });
                page.push(value);
                self.0.push(page);
            }
        }
    }

    /// Returns an element, if there is one at this place.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at / PAGE)?.get(at % PAGE)
    }
}

impl<T> Index<usize> for Pages<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.0[at / PAGE][at % PAGE]
    }
}

impl<T> IndexMut<usize> for Pages<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.0[at / PAGE][at % PAGE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_where_they_were_put() {
        let (mut pages, many) = (Pages::default(), 3 * PAGE + 7);
        assert_eq!((pages.len(), pages.is_empty(), pages.get(0)), (0, true, None));
        for number in 0..many {
            pages.push(number);
            assert_eq!(pages.len(), number + 1);
        }
        assert!(!pages.is_empty());
        pages[PAGE] = 0;
        assert!((0..many).all(|at| pages[at] == if at == PAGE { 0 } else { at }));
        assert_eq!((pages.get(many - 1), pages.get(many)), (Some(&(many - 1)), None));
    }
}
