//! Tables for a terminal.

use std::fmt;

use comfy_table::{CellAlignment, LineStyle, TableStyle};

/// A table whose columns are as wide as their contents. The first column is aligned left, the others right.
#[derive(Clone, Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// Creates a table with a header row, whose cells are separated by ` | `.
    pub(crate) fn new(head: &str) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─')));
        table.set_header(head.split(" | "));
        Self(table)
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.0.add_row(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = self.0.clone();
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if index == 0 { 0 } else { 2 }, 0));
            column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
        }
        table.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
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
