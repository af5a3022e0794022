//! Optional features of a build: compression, LLVM, TLS.
//!
//! `configure` records its arguments in the executable (see `evidence`). LLVM is a library that the
//! server loads (`src/backend/jit/llvm`), which may be in a separate package.

use crate::installation::Installation;

impl Installation {
    /// Whether the build has a feature, by its name in `configure --with-…`: `lz4`, `zstd`,
    /// `llvm`, `openssl`, … `None` if that is not known, as for Meson builds.
    pub fn has_feature(&self, name: &str) -> Option<bool> {
        if name == "llvm" {
            let base = self.bin_dir.parent().unwrap_or(&self.bin_dir);
            let places = ["lib", "lib64", "lib/postgresql", "lib64/postgresql"];
            let is_there = |place: &&str| base.join(place).join("llvmjit.so").is_file();
            return Some(places.iter().any(is_there));
        }
        self.build.has_feature(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::BuildFacts;
    use crate::installation::InstallationSource;
    use crate::version::Version;

    fn built(bin_dir: &std::path::Path, configure: Option<&str>) -> Installation {
        Installation {
            version: Version::parse("18.1").unwrap(),
            bin_dir: bin_dir.to_owned(),
            source: InstallationSource::Named,
            build: BuildFacts {
                configure: configure.map(str::to_owned),
                ..BuildFacts::default()
            },
        }
    }

    #[test]
    fn features_are_read_from_the_arguments_of_configure() {
        let nowhere = std::path::Path::new("/nonexistent/bin");
        let build = built(
            nowhere,
            Some(" '--with-lz4' '--with-ssl=openssl' 'CFLAGS=--with-zstd'"),
        );
        assert_eq!(build.has_feature("lz4"), Some(true));
        assert_eq!(build.has_feature("ssl"), Some(true));
        assert_eq!(build.has_feature("lz"), Some(false));
        assert_eq!(build.has_feature("zstd"), Some(false));
        assert_eq!(built(nowhere, None).has_feature("lz4"), None);
    }

    #[test]
    fn llvm_is_available_if_its_library_is_installed() {
        let root = tempfile::tempdir().unwrap();
        let build = built(&root.path().join("bin"), Some("'--with-llvm'"));
        assert_eq!(build.has_feature("llvm"), Some(false));
        std::fs::create_dir(root.path().join("lib")).unwrap();
        std::fs::write(root.path().join("lib/llvmjit.so"), "").unwrap();
        assert_eq!(build.has_feature("llvm"), Some(true));
    }
}
