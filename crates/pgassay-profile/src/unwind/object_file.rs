//! An ELF object for the profiler: its segments, the names and extents of its functions, and the
//! sections for unwinding stacks.
//!
//! Names come from `.symtab` and `.dynsym`, and from the debug file if one is installed. Extents of
//! functions without a name come from `.eh_frame`, so that unknown code is at least counted by
//! function.

use crate::proc::maps::{MappedFile, Mapping, VDSO};
use crate::regular_file;
use crate::unwind::debug_file::{self, ChecksumBudget, DebugLinks};
use crate::unwind::object_bytes::{ObjectBytes, READ_BYTES_MAX};
use crate::unwind::realigned::RealignedFrames;
use crate::unwind::symbols::{RawSymbol, SymbolBinding, SymbolTable};
use framehop::ExplicitModuleSectionInfo;
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, NativeEndian, UnwindSection};
use object::elf;
use object::read::ReadRef;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Object, ObjectSection, ObjectSymbol};
use pgassay_rights::{self as rights, Purpose};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type ElfFile<'data, R> = object::read::elf::ElfFile64<'data, object::Endianness, R>;
type ElfSymbols<'data, R> =
    object::read::elf::SymbolTable<'data, elf::FileHeader64<object::Endianness>, R>;

/// The contents of a section, shared by all processes that map the object.
pub(crate) type SectionBytes = Arc<[u8]>;

/// Assumed size of the function at an object's entry point if it is unknown; `_start` has 34 to 46
/// bytes.
const ENTRY_BYTES_MAX: u64 = 64;

/// Longer names are left out.
const NAME_BYTES_MAX: usize = 4096;
/// A function whose unwind instructions are longer is not unwound: they are evaluated for each sample. The longest
/// entry of PostgreSQL 9.6 to 18, LLVM 14 and 15, perl and OpenSSL has 2.4 KB.
const UNWIND_ENTRY_BYTES_MAX: usize = 16 << 10;
/// Without an index, framehop makes one, for each address space. Linkers leave it out only of static programs.
const NOT_INDEXED_BYTES_MAX: usize = 1 << 20;

/// One loaded object.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    /// The file name without directories, or `[vdso]`.
    pub name: Arc<str>,
    pub symbols: SymbolTable,
    /// There are only dynamic symbols, in the object and in a debug file.
    pub is_stripped: bool,
    /// The segments that contain code.
    segments: Vec<LoadSegment>,
    /// The function at the entry point; empty if there is none.
    entry: Range<u64>,
    sections: Sections,
    /// Frames that framehop cannot leave.
    pub realigned: RealignedFrames,
}

/// A function in `.eh_frame`.
#[derive(Debug)]
pub(crate) struct UnwindEntry {
    pub extent: Range<u64>,
    /// Its instructions can be evaluated quickly.
    pub is_short: bool,
}

#[derive(Debug, Clone, Copy)]
struct LoadSegment {
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
    #[error("{path} is not a valid object file: {source}")]
    Parse {
        path: PathBuf,
        source: object::Error,
    },
    #[error(
        "{path}: its symbols and unwind tables take more than {} MiB, so they are not read",
        READ_BYTES_MAX >> 20
    )]
    TooLarge { path: PathBuf },
}

impl ObjectError {
    /// Of an object that was read from this file.
    fn of(path: &Path, file: &ObjectBytes, source: object::Error) -> Self {
        let path = path.to_owned();
        if file.is_too_large() {
            Self::TooLarge { path }
        } else {
            Self::Parse { path, source }
        }
    }
}

impl ObjectFile {
    /// Reads the object file of a mapping of a process.
    pub fn load(
        pid: u32,
        mapping: &Mapping,
        checksums: &mut ChecksumBudget,
    ) -> Result<Self, ObjectError> {
        let path = &mapping.file.path;
        let opened = |source| ObjectError::Open {
            path: path.clone(),
            source,
        };
        if path == Path::new(VDSO) {
            let bytes = own_vdso().map_err(opened)?;
            return Self::parse(path, &bytes[..], pid, checksums).map_err(|source| {
                ObjectError::Parse {
                    path: path.clone(),
                    source,
                }
            });
        }
        let file = ObjectBytes::new(open_mapped(pid, mapping).map_err(opened)?);
        Self::parse(path, &file, pid, checksums)
            .map_err(|source| ObjectError::of(path, &file, source))
    }

    /// Reads an object file on disk.
    pub fn read(path: &Path) -> Result<Self, ObjectError> {
        let file = regular_file::open(path).map_err(|source| ObjectError::Open {
            path: path.to_owned(),
            source,
        })?;
        let file = ObjectBytes::new(file);
        let mut checksums = ChecksumBudget::default();
        Self::parse(path, &file, std::process::id(), &mut checksums)
            .map_err(|source| ObjectError::of(path, &file, source))
    }

    fn parse<'data, R>(
        path: &Path,
        data: R,
        pid: u32,
        checksums: &mut ChecksumBudget,
    ) -> Result<Self, object::Error>
    where
        R: ReadRef<'data>,
    {
        let elf = ElfFile::parse(data)?;
        let endian = elf.endian();
        let segments = code_segments(&elf);
        // A debug file has the stripped names, for the same addresses.
        let links = DebugLinks {
            build_id: elf.build_id()?,
            link: elf.gnu_debuglink()?,
        };
        let debug_file = debug_file::open(pid, path, links, checksums);
        let debug_data = debug_file.map(ObjectBytes::new);
        // Without it there are only fewer names, so errors are ignored.
        let debug_elf = debug_data
            .as_ref()
            .and_then(|data| ElfFile::parse(data).ok());
        let mut all = functions(&elf);
        all.extend(debug_elf.iter().flat_map(functions));
        let symbols = SymbolTable::new(all);
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy();
        tracing::debug!(object = %name, functions = symbols.len(), "read an object file");
        let mut object = Self {
            name: Arc::from(&*name),
            symbols,
            is_stripped: !has_own_names(&elf) && !debug_elf.as_ref().is_some_and(has_own_names),
            segments,
            entry: 0..0,
            sections: Sections::read(&elf)?,
            realigned: RealignedFrames::default(),
        };
        if let (Some((_, eh_frame)), Some(bases)) = (&object.sections.eh_frame, object.bases()) {
            object.realigned = RealignedFrames::of(eh_frame, &bases);
        }
        let entry = elf.elf_header().e_entry(endian);
        if entry != 0 {
            let guess = entry..entry.saturating_add(ENTRY_BYTES_MAX);
            object.entry = object.extent(entry).unwrap_or(guess);
        }
        Ok(object)
    }

    /// The load bias of a mapping: its addresses minus those in the object file. `None` if the
    /// mapping cannot contain code of the object.
    pub fn bias(&self, mapping: &Mapping) -> Option<u64> {
        bias(&self.segments, mapping)
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

    /// The memory that it takes, but for a fixed part.
    pub fn bytes(&self) -> usize {
        let sections = [&self.sections.eh_frame, &self.sections.eh_frame_hdr];
        let sections = sections.into_iter().flatten();
        let tables: usize = sections.map(|(_, bytes)| bytes.len()).sum();
        tables + self.symbols.bytes() + self.realigned.bytes()
    }

    /// The extent of the function at an address of the object file, from `.eh_frame`.
    pub fn extent(&self, address: u64) -> Option<Range<u64>> {
        self.unwind_entry(address).map(|it| it.extent)
    }

    /// What `.eh_frame` has of the function at an address of the object file.
    pub fn unwind_entry(&self, address: u64) -> Option<UnwindEntry> {
        let (_, hdr) = self.sections.eh_frame_hdr.as_ref()?;
        let (_, bytes) = self.sections.eh_frame.as_ref()?;
        let bases = self.bases()?;
        let hdr = EhFrameHdr::new(hdr, NativeEndian).parse(&bases, 8).ok()?;
        let eh_frame = EhFrame::new(bytes, NativeEndian);
        let fde = hdr
            .table()?
            .fde_for_address(&eh_frame, &bases, address, UnwindSection::cie_from_offset)
            .ok()?;
        let bytes = fde.entry_len().saturating_add(fde.cie().entry_len());
        Some(UnwindEntry {
            extent: fde.initial_address()..fde.end_address(),
            is_short: bytes <= UNWIND_ENTRY_BYTES_MAX,
        })
    }

    /// The addresses that pointers in `.eh_frame` and `.eh_frame_hdr` are relative to.
    fn bases(&self) -> Option<BaseAddresses> {
        let (range, _) = self.sections.eh_frame.as_ref()?;
        let mut bases = BaseAddresses::default().set_eh_frame(range.start);
        if let Some((hdr, _)) = &self.sections.eh_frame_hdr {
            bases = bases.set_eh_frame_hdr(hdr.start);
        }
        if let Some(text) = &self.sections.text {
            bases = bases.set_text(text.start);
        }
        if let Some(got) = &self.sections.got {
            bases = bases.set_got(got.start);
        }
        Some(bases)
    }

    /// There is unwind information for every function of this object, so an address outside of them
    /// is not called code.
    pub fn knows_its_extents(&self) -> bool {
        self.sections.eh_frame_hdr.is_some() && self.sections.eh_frame.is_some()
    }

    /// Whether the address is in the function at the entry point.
    pub fn is_entry(&self, address: u64) -> bool {
        self.entry.contains(&address)
    }
}

/// The address of a mapped object's variable in the process; `None` if the object has no such
/// symbol.
pub(crate) fn variable(
    pid: u32,
    mapping: &Mapping,
    name: &str,
) -> Result<Option<u64>, ObjectError> {
    let path = &mapping.file.path;
    let file = open_mapped(pid, mapping).map_err(|source| ObjectError::Open {
        path: path.clone(),
        source,
    })?;
    let data = ObjectBytes::new(file);
    let elf = ElfFile::parse(&data).map_err(|source| ObjectError::of(path, &data, source))?;
    let mut symbols = elf.dynamic_symbols().chain(elf.symbols());
    let found = symbols.find(|it| it.address() != 0 && it.name() == Ok(name));
    let bias = bias(&code_segments(&elf), mapping);
    Ok(found
        .zip(bias)
        .map(|(symbol, bias)| symbol.address().wrapping_add(bias)))
}

fn code_segments<'data, R: ReadRef<'data>>(elf: &ElfFile<'data, R>) -> Vec<LoadSegment> {
    let endian = elf.endian();
    elf.elf_program_headers()
        .iter()
        .filter(|header| {
            header.p_type(endian) == elf::PT_LOAD && header.p_flags(endian).contains(elf::PF_X)
        })
        .map(|header| LoadSegment {
            file_offset: header.p_offset(endian),
            address: header.p_vaddr(endian),
            file_bytes: header.p_filesz(endian),
        })
        .collect()
}

/// A mapping consists of whole pages, so it can include parts of adjacent segments at its ends: its
/// segment is the one that it includes most of.
fn bias(segments: &[LoadSegment], mapping: &Mapping) -> Option<u64> {
    let file_end = mapping.file_offset + (mapping.end - mapping.start);
    let common_bytes = |s: &LoadSegment| {
        let end = file_end.min(s.file_offset.saturating_add(s.file_bytes));
        end.saturating_sub(mapping.file_offset.max(s.file_offset))
    };
    let segment = segments.iter().max_by_key(|s| common_bytes(s))?;
    (common_bytes(segment) > 0).then(|| {
        let in_segment = mapping.file_offset.wrapping_sub(segment.file_offset);
        mapping
            .start
            .wrapping_sub(segment.address.wrapping_add(in_segment))
    })
}

impl Sections {
    fn read<'data, R: ReadRef<'data>>(elf: &ElfFile<'data, R>) -> Result<Self, object::Error> {
        let range = |name| elf.section_by_name(name).map(|section| addresses(&section));
        let load = |name| -> Result<Option<(Range<u64>, SectionBytes)>, object::Error> {
            let Some(section) = elf.section_by_name(name) else {
                return Ok(None);
            };
            Ok(Some((addresses(&section), Arc::from(section.data()?))))
        };
        let eh_frame_hdr = load(".eh_frame_hdr")?;
        let eh_frame = load(".eh_frame")?
            .filter(|(_, bytes)| eh_frame_hdr.is_some() || bytes.len() <= NOT_INDEXED_BYTES_MAX);
        Ok(Self {
            text: range(".text"),
            got: range(".got"),
            eh_frame,
            eh_frame_hdr,
        })
    }
}

/// A damaged file can have a size that leads beyond the last address.
fn addresses<'data>(section: &impl ObjectSection<'data>) -> Range<u64> {
    section.address()..section.address().saturating_add(section.size())
}

fn has_own_names<'data, R: ReadRef<'data>>(elf: &ElfFile<'data, R>) -> bool {
    !elf.elf_symbol_table().is_empty()
}

/// All functions in `.symtab` and `.dynsym`; a stripped object has only the latter.
fn functions<'data, R: ReadRef<'data>>(elf: &ElfFile<'data, R>) -> Vec<RawSymbol<'data>> {
    let endian = elf.endian();
    let mut functions = Vec::new();
    for table in [elf.elf_symbol_table(), elf.elf_dynamic_symbol_table()] {
        let Some(names) = names_of(elf, table) else {
            continue;
        };
        for symbol in table.symbols() {
            // Assembly labels have no type; only those with a size are useful.
            let is_code = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_NOTYPE);
            if !is_code || symbol.st_shndx(endian) == elf::SHN_UNDEF {
                continue;
            }
            let Some(name) = name_at(names, symbol.st_name(endian)) else {
                continue;
            };
            functions.push(RawSymbol {
                start: symbol.st_value(endian),
                size: symbol.st_size(endian),
                binding: match symbol.st_bind() {
                    elf::STB_GLOBAL => SymbolBinding::Global,
                    elf::STB_WEAK => SymbolBinding::Weak,
                    _ => SymbolBinding::Local,
                },
                name,
            });
        }
    }
    functions
}

/// The names of a table's symbols, read at once: `ElfSymbols::strings` takes two system calls for each name.
fn names_of<'data, R: ReadRef<'data>>(
    elf: &ElfFile<'data, R>,
    table: &ElfSymbols<'data, R>,
) -> Option<&'data [u8]> {
    let sections = elf.elf_section_table();
    let section = sections.section(table.string_section()).ok()?;
    section.data(elf.endian(), elf.data()).ok()
}

/// The name that begins at an offset. Names can overlap, so their lengths add up to far more than the file's.
fn name_at(names: &[u8], offset: u32) -> Option<&str> {
    let rest = names.get(offset as usize..)?;
    let rest = &rest[..rest.len().min(NAME_BYTES_MAX + 1)];
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// Opens a file mapped by a process, even if it is deleted or in another mount namespace.
fn open_mapped(pid: u32, mapping: &Mapping) -> io::Result<File> {
    let MappedFile {
        path,
        deleted,
        device,
        inode,
    } = &mapping.file;
    if *deleted {
        // The exact file through the kernel, if permitted; for the program itself there is a second
        // link, which requires no privilege.
        let range = format!(
            "/proc/{pid}/map_files/{:x}-{:x}",
            mapping.start, mapping.end
        );
        let raised = rights::raise(Purpose::MappedFiles);
        let opened = regular_file::open(range.as_ref());
        drop(raised);
        return opened.or_else(|refused| {
            let exe = format!("/proc/{pid}/exe");
            let linked = std::fs::read_link(&exe)?;
            match MappedFile::from_kernel(&linked.to_string_lossy(), *device, *inode) {
                Some(file) if file == mapping.file => regular_file::open(exe.as_ref()),
                _ => Err(refused),
            }
        });
    }
    let mut inside = PathBuf::from(format!("/proc/{pid}/root"));
    inside.push(path.strip_prefix("/").unwrap_or(path));
    regular_file::open(&inside).or_else(|refused| {
        // By path in our own root, where it may be another file.
        let file = regular_file::open(path)?;
        let is_same = file.metadata()?.ino() == *inode;
        if is_same { Ok(file) } else { Err(refused) }
    })
}

/// The `vDSO` is the same in every process, so our own copy is used.
fn own_vdso() -> io::Result<Vec<u8>> {
    let own = crate::proc::maps::read(std::process::id())?;
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

#[cfg(test)]
mod tests;
