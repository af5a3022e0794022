use super::*;
use crate::unwind::frames::FrameTable;
use crate::unwind::kallsyms::KernelSymbols;
use crate::unwind::space::CodeAddress;

fn own() -> (ObjectFile, Mapping) {
    let mappings = crate::proc::maps::read(std::process::id()).unwrap();
    let path = std::env::current_exe().unwrap();
    let mapping = mappings.into_iter().find(|m| m.file.path == path).unwrap();
    (load(&mapping).unwrap(), mapping)
}

fn load(mapping: &Mapping) -> Result<ObjectFile, ObjectError> {
    ObjectFile::load(std::process::id(), mapping, &mut ChecksumBudget::default())
}

#[inline(never)]
fn a_function_of_this_file() -> u64 {
    std::hint::black_box(7)
}

#[test]
fn a_function_of_this_program_is_found_by_its_address() {
    assert_eq!(a_function_of_this_file(), 7);
    let (file, mapping) = own();
    let run = a_function_of_this_file as *const () as u64;
    let stated = run.wrapping_sub(file.bias(&mapping).unwrap());
    let (name, extent) = file.symbols.lookup(stated).unwrap();
    assert!(name.contains("a_function_of_this_file"), "{name}");
    assert_eq!(extent.start, stated);
    let unwound = file.extent(stated).unwrap();
    assert_eq!(unwound, extent, ".eh_frame and the symbol agree");
    assert!(file.knows_its_extents());
    assert!(!file.is_entry(stated));
}

#[test]
fn the_vdso_is_readable_and_has_the_clock_functions() {
    let mappings = crate::proc::maps::read(std::process::id()).unwrap();
    let Some(mapping) = mappings.iter().find(|m| m.file.path == Path::new(VDSO)) else {
        // Kernels can be booted without a vDSO.
        return;
    };
    let file = load(mapping).unwrap();
    assert_eq!(&*file.name, VDSO);
    assert!(file.symbols.len() > 0);
    assert!(file.bias(mapping).is_some());
}

#[test]
fn a_mapping_that_shares_a_page_of_two_segments_gets_the_right_one() {
    // lld's layout: in the file, the second segment begins in the page in which the first ends;
    // in memory, it is one page higher.
    let segments = [
        LoadSegment {
            file_offset: 0,
            address: 0,
            file_bytes: 0x5432,
        },
        LoadSegment {
            file_offset: 0x5432,
            address: 0x6432,
            file_bytes: 0x9000,
        },
    ];
    let mut mapping = own().1;
    (mapping.start, mapping.end, mapping.file_offset) = (0x70_6000, 0x71_0000, 0x5000);
    assert_eq!(bias(&segments, &mapping), Some(0x70_0000));
    mapping.file_offset = 0x10_0000;
    assert_eq!(bias(&segments, &mapping), None);
}

#[test]
fn the_error_for_an_invalid_object_file_includes_its_path() {
    let mut mapping = own().1;
    let dir = tempfile::tempdir().unwrap();
    mapping.file.path = dir.path().join("text");
    std::fs::write(&mapping.file.path, "not an object").unwrap();
    let error = load(&mapping).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("text is not a valid object file"),
        "{error}"
    );
}
/// This program's file with another size in the header of a section.
fn with_size(section: &str, size: u64, dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("damaged");
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let elf: ElfFile<'_, &[u8]> = ElfFile::parse(&bytes[..]).unwrap();
    let index = elf.section_by_name(section).unwrap().index().0;
    let header = elf.elf_header().e_shoff(elf.endian()) as usize + 64 * index;
    bytes[header + 32..][..8].copy_from_slice(&size.to_ne_bytes());
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_section_that_ends_beyond_the_last_address_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let file = ObjectFile::read(&with_size(".got", u64::MAX, &dir)).unwrap();
    assert_eq!(file.sections.got.unwrap().end, u64::MAX);
}

#[test]
fn a_symbol_table_of_a_terabyte_does_not_exhaust_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = with_size(".symtab", 24 << 36, &dir);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(25 << 36).unwrap();
    let error = ObjectFile::read(&path).unwrap_err().to_string();
    let words =
        "damaged: its symbols and unwind tables take more than 128 MiB, so they are not read";
    assert!(error.ends_with(words), "{error}");
}

#[test]
fn names_that_overlap_are_read_to_their_longest_length_only() {
    let mut names = vec![b'a'; NAME_BYTES_MAX + 2];
    names.extend(b"\0end");
    assert_eq!(name_at(&names, 0), None);
    assert_eq!(name_at(&names, 1), None);
    assert_eq!(name_at(&names, 2).map(str::len), Some(NAME_BYTES_MAX));
    assert_eq!(name_at(&names, names.len() as u32 - 3), None);
    assert_eq!(name_at(&names, u32::MAX), None);
}

/// An object with one function at 0x1000, whose unwind instructions have this many bytes that do nothing.
fn with_idle_instructions(bytes: usize) -> ObjectFile {
    const HDR: u64 = 0x8000;
    const EH_FRAME: u64 = 0x9000;
    let entry = |id: u32, body: &[u8]| {
        let length = body.len() as u32 + 4;
        [&length.to_ne_bytes()[..], &id.to_ne_bytes(), body].concat()
    };
    // Version 1, "zR", code alignment 1, data alignment -8, return address in register 16, absolute pointers;
    // CFA = rsp + 8, return address at CFA - 8.
    let cie = entry(0, b"\x01zR\0\x01\x78\x10\x01\x00\x0c\x07\x08\x90\x01\0\0");
    let back = cie.len() as u32 + 4;
    let mut body = [0x1000_u64.to_ne_bytes(), 0x100_u64.to_ne_bytes()].concat();
    body.push(0);
    body.resize(body.len() + bytes, 0);
    let eh_frame = [&cie[..], &entry(back, &body), &0_u32.to_ne_bytes()].concat();
    // Version 1; pointers of 4 bytes, the first one absolute, those of the table relative to the section.
    let relative = |to: u64| (to.wrapping_sub(HDR) as u32).to_ne_bytes();
    let mut hdr = vec![1, 0x03, 0x03, 0x3b];
    hdr.extend((EH_FRAME as u32).to_ne_bytes());
    hdr.extend(1_u32.to_ne_bytes());
    hdr.extend(relative(0x1000));
    hdr.extend(relative(EH_FRAME + cie.len() as u64));
    let section =
        |start: u64, bytes: Vec<u8>| Some((start..start + bytes.len() as u64, Arc::from(bytes)));
    let (mut object, _) = own();
    object.sections = Sections {
        eh_frame: section(EH_FRAME, eh_frame),
        eh_frame_hdr: section(HDR, hdr),
        ..Sections::default()
    };
    object
}

/// Regression: an entry of megabytes was evaluated for each sample in its function.
#[test]
fn a_function_with_long_unwind_instructions_is_not_unwound() {
    for (bytes, is_short) in [(100, true), (UNWIND_ENTRY_BYTES_MAX, false)] {
        let object = Arc::new(with_idle_instructions(bytes));
        let entry = object.unwind_entry(0x1080).unwrap();
        assert_eq!((entry.extent, entry.is_short), (0x1000..0x1100, is_short));
        let code = CodeAddress {
            object: Some(0),
            address: 0x1080,
        };
        let mut frames = FrameTable::new(KernelSymbols::default());
        let known = frames.user(&[object], code).code;
        assert_eq!((known.is_code, known.can_unwind), (true, is_short));
    }
}
