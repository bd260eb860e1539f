//! Tables for a terminal.

use std::fmt;

/// A table whose columns are as wide as their contents. The first column is aligned left, the others right.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with a header row, whose cells are separated by ` | `.
    pub(crate) fn new(head: &str) -> Self {
        Self { rows: vec![head.split(" | ").map(str::to_owned).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = " ".repeat(width - cell.chars().count());
                match column {
                    0 => line.push_str(&format!("{cell}{gap}")),
                    _ => line.push_str(&format!("  {gap}{cell}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 {
                writeln!(f, "{}", "─".repeat(widths.iter().sum::<usize>() + 2 * (columns - 1)))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new("system | rate");
        table.row(vec!["optimistic".into(), "1".into()]);
        table.row(vec!["µ".into(), "12,345".into()]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["system        rate", "──────────────────", "optimistic       1", "µ           12,345"]
        );
    }
}
