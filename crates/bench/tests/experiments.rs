//! `run.sh` of a folder of `experiments/` makes all results that the folder holds.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Stands in for the program: makes the file of results that it is told of, and prints a line.
const PROGRAM: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    if [ "$1" = --results ]; then echo '{}' >"$2"; fi
    shift
done
echo measured
"#;

/// Returns the names of the results and tables in a folder.
fn results(folder: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".json") || name.ends_with(".txt")).collect()
}

#[test]
fn a_folder_holds_no_results_that_its_script_does_not_make() {
    let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("nacre");
    fs::write(&program, PROGRAM).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut studies = 0;
    for entry in fs::read_dir(experiments).unwrap() {
        let study = entry.unwrap().path();
        let script = study.join("run.sh");
        let produced = scratch.path().join(study.file_name().unwrap());
        fs::create_dir(&produced).unwrap();
        fs::copy(&script, produced.join("run.sh")).unwrap();
        let mut run = Command::new("sh");
        run.arg(produced.join("run.sh")).arg(&program);
        for variable in ["ONLY", "QUICK", "STUDIES", "DWALK", "PDU", "SAMPLICATE"] {
            run.env_remove(variable);
        }
        let ran = run.output().unwrap();
        assert!(ran.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&ran.stderr));
        let (held, produced) = (results(&study), results(&produced));
        let unknown: Vec<_> = held.difference(&produced).collect();
        assert!(unknown.is_empty(), "{} does not make {unknown:?}", script.display());
        studies += 1;
    }
    assert!(studies >= 6, "{studies} studies were found");
}
