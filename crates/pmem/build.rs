//! Finds libpmem through pkg-config.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Err(error) = pkg_config::Config::new()
        .atleast_version("1.5")
        .probe("libpmem")
    {
        eprintln!(
            "quayfs-pmem needs libpmem 1.5 or newer, found through pkg-config.\n\
             On Debian and Ubuntu: apt-get install libpmem-dev pkg-config\n\
             On Fedora: dnf install libpmem-devel pkgconf\n\n{error}"
        );
        std::process::exit(1);
    }
}
