//! An ELF object as the profiler needs it: where its segments go, its functions' names and
//! extents, and the sections by which stacks are unwound.
//!
//! Names come from `.symtab` and `.dynsym` together. Extents of functions that have no name come
//! from `.eh_frame`, so that unknown code is at least counted by function.

use crate::maps::{MappedFile, Mapping, VDSO};
use crate::symbols::{Binding, RawSymbol, SymbolTable};
use framehop::ExplicitModuleSectionInfo;
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, NativeEndian, UnwindSection};
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::read::{ReadCache, ReadRef};
use object::{Object, ObjectSection};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type ElfFile<'data, R> = object::read::elf::ElfFile64<'data, object::Endianness, R>;

/// Bytes of a section, shared by all processes that map the object.
pub(crate) type SectionBytes = Arc<[u8]>;

/// How far from an object's entry its outermost function reaches at most; `_start` is 34 to 46
/// bytes long.
const ENTRY_BYTES_MAX: u64 = 64;

/// One loaded object.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    /// The file's last name, or `[vdso]`.
    pub name: Arc<str>,
    pub symbols: SymbolTable,
    segments: Vec<Segment>,
    entry: u64,
    sections: Sections,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    file_offset: u64,
    address: u64,
    file_bytes: u64,
}

#[derive(Debug, Default)]
struct Sections {
    text: Option<Range<u64>>,
    got: Option<Range<u64>>,
    eh_frame: Option<(Range<u64>, SectionBytes)>,
    eh_frame_hdr: Option<(Range<u64>, SectionBytes)>,
}

/// Why an object could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error("{path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("{path} is not an object that can be read: {source}")]
    Parse {
        path: PathBuf,
        source: object::Error,
    },
}

impl ObjectFile {
    /// Reads the object behind a mapping of a process.
    pub fn load(pid: u32, mapping: &Mapping) -> Result<Self, ObjectError> {
        let path = &mapping.file.path;
        let opened = |source| ObjectError::Open {
            path: path.clone(),
            source,
        };
        let parsed = |source| ObjectError::Parse {
            path: path.clone(),
            source,
        };
        if path == Path::new(VDSO) {
            let bytes = own_vdso().map_err(opened)?;
            return Self::parse(VDSO, &bytes[..]).map_err(parsed);
        }
        let file = open_mapped(pid, mapping).map_err(opened)?;
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy();
        Self::parse(&name, &ReadCache::new(file)).map_err(parsed)
    }

    fn parse<'data, R: ReadRef<'data>>(name: &str, data: R) -> Result<Self, object::Error> {
        let elf = ElfFile::parse(data)?;
        let endian = elf.endian();
        let segments = elf
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(endian) == elf::PT_LOAD)
            .map(|header| Segment {
                file_offset: header.p_offset(endian),
                address: header.p_vaddr(endian),
                file_bytes: header.p_filesz(endian),
            })
            .collect();
        let symbols = SymbolTable::new(functions(&elf));
        tracing::debug!(object = name, functions = symbols.len(), "read an object");
        Ok(Self {
            name: Arc::from(name),
            symbols,
            segments,
            entry: elf.elf_header().e_entry(endian),
            sections: Sections::read(&elf)?,
        })
    }

    /// What must be added to this object's stated addresses to get those of a mapping; nothing if
    /// no segment of it can be there.
    pub fn bias(&self, mapping: &Mapping) -> Option<u64> {
        // A mapping begins and ends at whole pages, so it may begin before its segment.
        let mapped = mapping.file_offset..mapping.file_offset + (mapping.end - mapping.start);
        self.segments
            .iter()
            .find(|s| s.file_offset < mapped.end && mapped.start < s.file_offset + s.file_bytes)
            .map(|s| {
                let address = s
                    .address
                    .wrapping_sub(s.file_offset)
                    .wrapping_add(mapping.file_offset);
                mapping.start.wrapping_sub(address)
            })
    }

    /// For framehop.
    pub fn unwind_sections(&self) -> ExplicitModuleSectionInfo<SectionBytes> {
        let of = |section: &Option<(Range<u64>, SectionBytes)>| section.clone().unzip();
        let (eh_frame_svma, eh_frame) = of(&self.sections.eh_frame);
        let (eh_frame_hdr_svma, eh_frame_hdr) = of(&self.sections.eh_frame_hdr);
        ExplicitModuleSectionInfo {
            text_svma: self.sections.text.clone(),
            got_svma: self.sections.got.clone(),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..Default::default()
        }
    }

    /// The extent of the function at a stated address, as `.eh_frame` knows it.
    pub fn extent(&self, address: u64) -> Option<Range<u64>> {
        let (hdr_range, hdr) = self.sections.eh_frame_hdr.as_ref()?;
        let (range, bytes) = self.sections.eh_frame.as_ref()?;
        let mut bases = BaseAddresses::default()
            .set_eh_frame(range.start)
            .set_eh_frame_hdr(hdr_range.start);
        if let Some(text) = &self.sections.text {
            bases = bases.set_text(text.start);
        }
        if let Some(got) = &self.sections.got {
            bases = bases.set_got(got.start);
        }
        let hdr = EhFrameHdr::new(hdr, NativeEndian).parse(&bases, 8).ok()?;
        let eh_frame = EhFrame::new(bytes, NativeEndian);
        let fde = hdr
            .table()?
            .fde_for_address(&eh_frame, &bases, address, UnwindSection::cie_from_offset)
            .ok()?;
        Some(fde.initial_address()..fde.end_address())
    }

    /// Unwinding knows what to do at every function of this object, so that an address in none
    /// of them is not code that was called.
    pub fn knows_its_extents(&self) -> bool {
        self.sections.eh_frame_hdr.is_some() && self.sections.eh_frame.is_some()
    }

    /// The address lies in the function by which the kernel or the loader enters the object.
    pub fn is_entry(&self, address: u64) -> bool {
        self.entry != 0 && (self.entry..self.entry + ENTRY_BYTES_MAX).contains(&address)
    }
}

impl Sections {
    fn read<'data, R: ReadRef<'data>>(elf: &ElfFile<'data, R>) -> Result<Self, object::Error> {
        let range = |name| {
            elf.section_by_name(name)
                .map(|s| s.address()..s.address() + s.size())
        };
        let load = |name| -> Result<Option<(Range<u64>, SectionBytes)>, object::Error> {
            let Some(section) = elf.section_by_name(name) else {
                return Ok(None);
            };
            let range = section.address()..section.address() + section.size();
            Ok(Some((range, Arc::from(section.data()?))))
        };
        Ok(Self {
            text: range(".text"),
            got: range(".got"),
            eh_frame: load(".eh_frame")?,
            eh_frame_hdr: load(".eh_frame_hdr")?,
        })
    }
}

/// All functions of `.symtab` and `.dynsym`; a stripped object has only the latter.
fn functions<'data, R: ReadRef<'data>>(elf: &ElfFile<'data, R>) -> Vec<RawSymbol<'data>> {
    let endian = elf.endian();
    let mut functions = Vec::new();
    for table in [elf.elf_symbol_table(), elf.elf_dynamic_symbol_table()] {
        for symbol in table.symbols() {
            // Labels of assembly have no type, but only those with a size are of use.
            let is_code = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_NOTYPE);
            if !is_code || symbol.st_shndx(endian) == elf::SHN_UNDEF {
                continue;
            }
            let name = symbol.name(endian, table.strings()).ok();
            let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
                continue;
            };
            functions.push(RawSymbol {
                start: symbol.st_value(endian),
                size: symbol.st_size(endian),
                binding: match symbol.st_bind() {
                    elf::STB_GLOBAL => Binding::Global,
                    elf::STB_WEAK => Binding::Weak,
                    _ => Binding::Local,
                },
                name,
            });
        }
    }
    functions
}

/// Opens what a process has mapped, although it may be deleted, or in another mount namespace.
fn open_mapped(pid: u32, mapping: &Mapping) -> io::Result<File> {
    let MappedFile {
        path,
        deleted,
        device,
        inode,
    } = &mapping.file;
    if *deleted {
        // The exact file through the kernel, where that is permitted; the program itself has a
        // second way in, which needs no privilege.
        let range = format!(
            "/proc/{pid}/map_files/{:x}-{:x}",
            mapping.start, mapping.end
        );
        return File::open(range).or_else(|refused| {
            let exe = format!("/proc/{pid}/exe");
            let linked = std::fs::read_link(&exe)?;
            match MappedFile::from_kernel(&linked.to_string_lossy(), *device, *inode) {
                Some(file) if file == mapping.file => File::open(exe),
                _ => Err(refused),
            }
        });
    }
    let mut inside = PathBuf::from(format!("/proc/{pid}/root"));
    inside.push(path.strip_prefix("/").unwrap_or(path));
    File::open(&inside).or_else(|_| File::open(path))
}

/// The kernel's object is the same in every process, so our own copy serves.
fn own_vdso() -> io::Result<Vec<u8>> {
    let own = crate::maps::read(std::process::id())?;
    let vdso = own
        .iter()
        .find(|m| m.file.path == Path::new(VDSO))
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let mut bytes = vec![0; (vdso.end - vdso.start) as usize];
    let mut memory = File::open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(vdso.start))?;
    memory.read_exact(&mut bytes)?;
    Ok(bytes)
}
