//! `cudaDeviceProp`, in the layouts of CUDA 12 and CUDA 13.
//!
//! The two share most fields, in the same order. Fields are written one after the other, each aligned as a C
//! compiler would, and a test compares the offsets with those a C compiler reports for the installed headers.

use memfit_channel::identity;

use crate::{attributes, machine::Card};

/// A structure under construction, field by field.
#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
    offsets: Vec<(&'static str, usize)>,
}

impl Record {
    fn push_field(&mut self, name: &'static str, alignment: usize, bytes: &[u8]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
        self.offsets.push((name, self.bytes.len()));
        self.bytes.extend_from_slice(bytes);
    }

    fn int(&mut self, name: &'static str, value: i32) {
        self.push_field(name, 4, &value.to_ne_bytes());
    }

    fn ints(&mut self, name: &'static str, values: &[i32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.push_field(name, 4, &bytes);
    }

    fn size(&mut self, name: &'static str, value: u64) {
        self.push_field(name, 8, &value.to_ne_bytes());
    }
}

/// Bytes of the structure, for a CUDA major version.
pub(crate) fn structure_bytes(card: &Card, major: i32) -> Vec<u8> {
    record(card, major).bytes
}

/// Bytes of CUDA 12's layout that its unversioned `cudaGetDeviceProperties` fills: CUDA 11's structure ended
/// there.
pub(crate) const CUDA_11_SIZE: usize = 728;

fn record(card: &Card, major: i32) -> Record {
    let twelve = major < 13;
    let at = |number| attributes::get(card, number).unwrap_or(0);
    let size = |number| at(number) as u64;
    let mut name = [0; 256];
    let text = card.device.name.as_bytes();
    let kept = text.len().min(255);
    name[..kept].copy_from_slice(&text[..kept]);

    let mut r = Record::default();
    r.push_field("name", 1, &name);
    r.push_field("uuid", 1, &identity::uuid(card.index));
    r.push_field("luid", 1, &[0; 8]);
    r.int("luidDeviceNodeMask", 0);
    r.size("totalGlobalMem", card.device.memory.get());
    r.size("sharedMemPerBlock", size(8));
    r.int("regsPerBlock", at(12));
    r.int("warpSize", at(10));
    r.size("memPitch", size(11));
    r.int("maxThreadsPerBlock", at(1));
    r.ints("maxThreadsDim", &[at(2), at(3), at(4)]);
    r.ints("maxGridSize", &[at(5), at(6), at(7)]);
    if twelve {
        r.int("clockRate", at(13));
    }
    r.size("totalConstMem", size(9));
    r.int("major", at(75));
    r.int("minor", at(76));
    r.size("textureAlignment", size(14));
    r.size("texturePitchAlignment", size(51));
    if twelve {
        r.int("deviceOverlap", at(15));
    }
    r.int("multiProcessorCount", at(16));
    if twelve {
        r.int("kernelExecTimeoutEnabled", at(17));
    }
    r.int("integrated", at(18));
    r.int("canMapHostMemory", at(19));
    if twelve {
        r.int("computeMode", at(20));
    }
    r.int("maxTexture1D", at(21));
    r.int("maxTexture1DMipmap", at(77));
    if twelve {
        r.int("maxTexture1DLinear", at(69));
    }
    r.ints("maxTexture2D", &[at(22), at(23)]);
    r.ints("maxTexture2DMipmap", &[at(73), at(74)]);
    r.ints("maxTexture2DLinear", &[at(70), at(71), at(72)]);
    r.ints("maxTexture2DGather", &[at(45), at(46)]);
    r.ints("maxTexture3D", &[at(24), at(25), at(26)]);
    r.ints("maxTexture3DAlt", &[at(47), at(48), at(49)]);
    r.int("maxTextureCubemap", at(52));
    r.ints("maxTexture1DLayered", &[at(42), at(43)]);
    r.ints("maxTexture2DLayered", &[at(27), at(28), at(29)]);
    r.ints("maxTextureCubemapLayered", &[at(53), at(54)]);
    r.int("maxSurface1D", at(55));
    r.ints("maxSurface2D", &[at(56), at(57)]);
    r.ints("maxSurface3D", &[at(58), at(59), at(60)]);
    r.ints("maxSurface1DLayered", &[at(61), at(62)]);
    r.ints("maxSurface2DLayered", &[at(63), at(64), at(65)]);
    r.int("maxSurfaceCubemap", at(66));
    r.ints("maxSurfaceCubemapLayered", &[at(67), at(68)]);
    r.size("surfaceAlignment", size(30));
    r.int("concurrentKernels", at(31));
    r.int("ECCEnabled", at(32));
    r.int("pciBusID", at(33));
    r.int("pciDeviceID", at(34));
    r.int("pciDomainID", at(50));
    r.int("tccDriver", at(35));
    r.int("asyncEngineCount", at(40));
    r.int("unifiedAddressing", at(41));
    if twelve {
        r.int("memoryClockRate", at(36));
    }
    r.int("memoryBusWidth", at(37));
    r.int("l2CacheSize", at(38));
    r.int("persistingL2CacheMaxSize", at(108));
    r.int("maxThreadsPerMultiProcessor", at(39));
    r.int("streamPrioritiesSupported", at(78));
    r.int("globalL1CacheSupported", at(79));
    r.int("localL1CacheSupported", at(80));
    r.size("sharedMemPerMultiprocessor", size(81));
    r.int("regsPerMultiprocessor", at(82));
    r.int("managedMemory", at(83));
    r.int("isMultiGpuBoard", at(84));
    r.int("multiGpuBoardGroupID", at(85));
    r.int("hostNativeAtomicSupported", at(86));
    if twelve {
        r.int("singleToDoublePrecisionPerfRatio", at(87));
    }
    r.int("pageableMemoryAccess", at(88));
    r.int("concurrentManagedAccess", at(89));
    r.int("computePreemptionSupported", at(90));
    r.int("canUseHostPointerForRegisteredMem", at(91));
    r.int("cooperativeLaunch", at(95));
    if twelve {
        r.int("cooperativeMultiDeviceLaunch", at(96));
    }
    r.size("sharedMemPerBlockOptin", size(97));
    r.int("pageableMemoryAccessUsesHostPageTables", at(100));
    r.int("directManagedMemAccessFromHost", at(101));
    r.int("maxBlocksPerMultiProcessor", at(106));
    r.int("accessPolicyMaxWindowSize", at(109));
    r.size("reservedSharedMemPerBlock", size(111));
    r.int("hostRegisterSupported", at(99));
    r.int("sparseCudaArraySupported", at(112));
    r.int("hostRegisterReadOnlySupported", at(113));
    r.int("timelineSemaphoreInteropSupported", at(114));
    r.int("memoryPoolsSupported", at(115));
    r.int("gpuDirectRDMASupported", at(116));
    r.int("gpuDirectRDMAFlushWritesOptions", at(117));
    r.int("gpuDirectRDMAWritesOrdering", at(118));
    r.int("memoryPoolSupportedHandleTypes", at(119));
    r.int("deferredMappingCudaArraySupported", at(121));
    r.int("ipcEventSupported", at(125));
    r.int("clusterLaunch", at(120));
    r.int("unifiedFunctionPointers", at(129));
    if twelve {
        r.ints("reserved", &[0; 63]);
    } else {
        r.int("deviceNumaConfig", at(130));
        r.int("deviceNumaId", at(131));
        r.int("mpsEnabled", at(133));
        r.int("hostNumaId", at(134));
        // The lower half holds the vendor's number.
        r.int("gpuPciDeviceID", i32::from(card.device.pci_device_id) << 16 | 0x10de);
        r.int("gpuPciSubsystemID", 0);
        r.int("hostNumaMultinodeIpcSupported", at(143));
        r.ints("reserved", &[0; 56]);
    }
    r.push_field("", 8, &[]);
    r
}

/// Names and offsets of the structure's fields, with its size under an empty name.
pub(crate) fn layout(major: i32) -> Option<Vec<(&'static str, usize)>> {
    let card = crate::machine::card(0).ok()?;
    Some(record(card, major).offsets)
}
