//! scratch
use quayfs_model::{ordering::*, suite::*};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    if a[1] == "matrix" {
        for o in Ordering::ALL {
            if a.len() > 2 && !format!("{o:?}").contains(&a[2]) {
                continue;
            }
            print!("{o:?}:");
            for mut c in configs() {
                c.kept = c.kept.without(*o);
                let t = std::time::Instant::now();
                let r = run(&c, 4_000_000);
                match r.counterexample {
                    Some(x) => print!(" {}={:?}/{}", c.name, x.property, x.trace.len()),
                    None if !r.complete => print!(" {}=?", c.name),
                    None => {}
                }
                if t.elapsed().as_secs() > 20 {
                    print!("(slow)");
                }
            }
            println!();
        }
        return;
    }
    if a[1] == "imatrix" {
        for o in Ordering::ALL {
            if a.len() > 2 && !format!("{o:?}").contains(&a[2]) {
                continue;
            }
            print!("{o:?}:");
            for mut c in images() {
                c.kept = c.kept.without(*o);
                let r = run_image(&c, 4_000_000);
                match r.counterexample {
                    Some(x) => print!(" {}={:?}/{}", c.name, x.property, x.trace.len()),
                    None if !r.complete => print!(" {}=?", c.name),
                    None => {}
                }
            }
            println!();
        }
        return;
    }
    for mut c in images() {
        if a.len() > 1 && a[1] != "images" && c.name != a[1] {
            continue;
        }
        if a.len() > 2 {
            let o = Ordering::ALL
                .iter()
                .find(|o| format!("{o:?}") == a[2])
                .unwrap();
            c.kept = c.kept.without(*o);
        }
        let t = std::time::Instant::now();
        let r = run_image(&c, 60_000_000);
        println!(
            "{} states {} depth {} complete {} {:?}",
            c.name,
            r.states,
            r.depth,
            r.complete,
            t.elapsed()
        );
        if let Some(x) = r.counterexample {
            println!("  {:?} ({} steps)", x.property, x.trace.len());
            for l in x.trace {
                println!("    {l}");
            }
        }
    }
    if a[1] == "pmatrix" {
        for o in Ordering::ALL {
            if a.len() > 2 && !format!("{o:?}").contains(&a[2]) {
                continue;
            }
            print!("{o:?}:");
            for mut c in ppts() {
                c.kept = c.kept.without(*o);
                let r =
                    quayfs_model::checker::explore(&quayfs_model::ppt::Log(c.clone()), 4_000_000);
                match r.counterexample {
                    Some(x) => print!(" {}={:?}/{}", c.name, x.property, x.trace.len()),
                    None if !r.complete => print!(" {}=?", c.name),
                    None => {}
                }
            }
            println!();
        }
        return;
    }
    for mut c in ppts() {
        if a.len() > 1 && a[1] != "ppts" && c.name != a[1] {
            continue;
        }
        if a.len() > 2 {
            let o = Ordering::ALL
                .iter()
                .find(|o| format!("{o:?}") == a[2])
                .unwrap();
            c.kept = c.kept.without(*o);
        }
        let t = std::time::Instant::now();
        let r = quayfs_model::checker::explore(&quayfs_model::ppt::Log(c.clone()), 60_000_000);
        println!(
            "{} states {} depth {} complete {} {:?}",
            c.name,
            r.states,
            r.depth,
            r.complete,
            t.elapsed()
        );
        if let Some(x) = r.counterexample {
            println!("  {:?} ({} steps)", x.property, x.trace.len());
            for l in x.trace {
                println!("    {l}");
            }
        }
    }
    if a[1] == "rmatrix" {
        for o in Ordering::ALL {
            if a.len() > 2 && !format!("{o:?}").contains(&a[2]) {
                continue;
            }
            print!("{o:?}:");
            for mut c in readers() {
                c.kept = c.kept.without(*o);
                let r = quayfs_model::checker::explore(
                    &quayfs_model::reader::Readers(c.clone()),
                    4_000_000,
                );
                match r.counterexample {
                    Some(x) => print!(" {}={:?}/{}", c.name, x.property, x.trace.len()),
                    None if !r.complete => print!(" {}=?", c.name),
                    None => {}
                }
            }
            println!();
        }
        return;
    }
    for mut c in readers() {
        if a.len() > 1 && a[1] != "readers" && c.name != a[1] {
            continue;
        }
        if a.len() > 2 {
            let o = Ordering::ALL
                .iter()
                .find(|o| format!("{o:?}") == a[2])
                .unwrap();
            c.kept = c.kept.without(*o);
        }
        let t = std::time::Instant::now();
        let r =
            quayfs_model::checker::explore(&quayfs_model::reader::Readers(c.clone()), 60_000_000);
        println!(
            "{} states {} depth {} complete {} {:?}",
            c.name,
            r.states,
            r.depth,
            r.complete,
            t.elapsed()
        );
        if let Some(x) = r.counterexample {
            println!("  {:?} ({} steps)", x.property, x.trace.len());
            for l in x.trace {
                println!("    {l}");
            }
        }
    }
    if a[1] == "tmatrix" {
        for o in Ordering::ALL {
            if a.len() > 2 && !format!("{o:?}").contains(&a[2]) {
                continue;
            }
            print!("{o:?}:");
            for mut c in intents() {
                c.kept = c.kept.without(*o);
                let r = quayfs_model::checker::explore(
                    &quayfs_model::intent::Intents(c.clone()),
                    4_000_000,
                );
                match r.counterexample {
                    Some(x) => print!(" {}={:?}/{}", c.name, x.property, x.trace.len()),
                    None if !r.complete => print!(" {}=?", c.name),
                    None => {}
                }
            }
            println!();
        }
        return;
    }
    for mut c in intents() {
        if a.len() > 1 && a[1] != "intents" && c.name != a[1] {
            continue;
        }
        if a.len() > 2 {
            let o = Ordering::ALL
                .iter()
                .find(|o| format!("{o:?}") == a[2])
                .unwrap();
            c.kept = c.kept.without(*o);
        }
        let t = std::time::Instant::now();
        let r =
            quayfs_model::checker::explore(&quayfs_model::intent::Intents(c.clone()), 60_000_000);
        println!(
            "{} states {} depth {} complete {} {:?}",
            c.name,
            r.states,
            r.depth,
            r.complete,
            t.elapsed()
        );
        if let Some(x) = r.counterexample {
            println!("  {:?} ({} steps)", x.property, x.trace.len());
            for l in x.trace {
                println!("    {l}");
            }
        }
    }
    if a[1] == "cmatrix" {
        for o in Ordering::ALL {
            if a.len() > 2 && !format!("{o:?}").contains(&a[2]) {
                continue;
            }
            print!("{o:?}:");
            for mut c in credit() {
                c.kept = c.kept.without(*o);
                let r = quayfs_model::checker::explore(
                    &quayfs_model::credits::Credits(c.clone()),
                    4_000_000,
                );
                match r.counterexample {
                    Some(x) => print!(" {}={:?}/{}", c.name, x.property, x.trace.len()),
                    None if !r.complete => print!(" {}=?", c.name),
                    None => {}
                }
            }
            println!();
        }
        return;
    }
    for mut c in credit() {
        if a.len() > 1 && a[1] != "credit" && c.name != a[1] {
            continue;
        }
        if a.len() > 2 {
            let o = Ordering::ALL
                .iter()
                .find(|o| format!("{o:?}") == a[2])
                .unwrap();
            c.kept = c.kept.without(*o);
        }
        let t = std::time::Instant::now();
        let r =
            quayfs_model::checker::explore(&quayfs_model::credits::Credits(c.clone()), 60_000_000);
        println!(
            "{} states {} depth {} complete {} {:?}",
            c.name,
            r.states,
            r.depth,
            r.complete,
            t.elapsed()
        );
        if let Some(x) = r.counterexample {
            println!("  {:?} ({} steps)", x.property, x.trace.len());
            for l in x.trace {
                println!("    {l}");
            }
        }
    }
    if a[1] == "lmatrix" {
        for o in Ordering::ALL {
            if a.len() > 2 && !format!("{o:?}").contains(&a[2]) {
                continue;
            }
            print!("{o:?}:");
            for mut c in lanes() {
                c.kept = c.kept.without(*o);
                let r = run_lane(&c, 4_000_000);
                match r.counterexample {
                    Some(x) => print!(" {}={:?}/{}", c.name, x.property, x.trace.len()),
                    None if !r.complete => print!(" {}=?", c.name),
                    None => {}
                }
            }
            println!();
        }
        return;
    }
    for mut c in lanes() {
        if a.len() > 1 && a[1] != "lanes" && c.name != a[1] {
            continue;
        }
        if a.len() > 2 {
            let o = Ordering::ALL
                .iter()
                .find(|o| format!("{o:?}") == a[2])
                .unwrap();
            c.kept = c.kept.without(*o);
        }
        let t = std::time::Instant::now();
        let r = run_lane(&c, 60_000_000);
        println!(
            "{} states {} depth {} complete {} {:?}",
            c.name,
            r.states,
            r.depth,
            r.complete,
            t.elapsed()
        );
        if let Some(x) = r.counterexample {
            println!("  {:?} ({} steps)", x.property, x.trace.len());
            for l in x.trace {
                println!("    {l}");
            }
        }
    }
    for mut c in configs() {
        if a.len() > 1 && a[1] != "-" && c.name != a[1] {
            continue;
        }
        if a.len() > 2 {
            let o = Ordering::ALL
                .iter()
                .find(|o| format!("{o:?}") == a[2])
                .unwrap();
            c.kept = c.kept.without(*o);
        }
        let t = std::time::Instant::now();
        let r = run(&c, 60_000_000);
        println!(
            "{} states {} depth {} complete {} {:?}",
            c.name,
            r.states,
            r.depth,
            r.complete,
            t.elapsed()
        );
        if let Some(x) = r.counterexample {
            println!("  {:?} ({} steps)", x.property, x.trace.len());
            for l in x.trace {
                println!("    {l}");
            }
        }
    }
}
