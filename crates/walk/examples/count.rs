//! Counts what is below a folder: the smallest walk there is.
use nacre_walk::{Directory, Entry, Opened, Options, Verdict, Visitor, Walk, WalkError};

#[derive(Default)]
struct Count {
    entries: u64,
    bytes: u64,
    errors: u64,
}

impl Visitor for Count {
    type State = ();
    fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
        Some(())
    }
    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        self.entries += 1;
        self.bytes += entry.metadata.map_or(0, |metadata| metadata.allocated());
        Verdict::Descend
    }
    fn leave(&mut self, _directory: &Directory<()>) {}
    fn failed(&mut self, error: WalkError) {
        eprintln!("count: {error}");
        self.errors += 1;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::args_os().nth(1).ok_or("usage: count FOLDER")?;
    let options = Options::default();
    let mut visitors: Vec<Count> = (0..options.threads.get()).map(|_| Count::default()).collect();
    let mut walk = Walk::new(options);
    let number = walk.add_root(root.as_ref())?;
    walk.start(number, &mut visitors[0])?;
    walk.run(&mut visitors);
    let sum = |of: fn(&Count) -> u64| visitors.iter().map(of).sum::<u64>();
    println!("{} entries, {} bytes, {} errors", sum(|v| v.entries), sum(|v| v.bytes), sum(|v| v.errors));
    Ok(())
}
