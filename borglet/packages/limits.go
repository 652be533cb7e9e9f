package packages

import "time"

const (
	// maxManifestBytes bounds a manifest, an index and a configuration.
	maxManifestBytes = 4 << 20
	// maxLayers is what overlayfs is sure to take, with some to spare.
	maxLayers = 127
	// maxManifests bounds the indexes around a manifest, and itself.
	maxManifests = 4
	// maxPlatforms bounds the manifests in an index.
	maxPlatforms = 256
	// maxListed bounds each list in a manifest or index.
	maxListed = 1024
	// maxEntries bounds the files, directories and links of one layer.
	maxEntries = 1_000_000
	// maxHeaderBytes bounds the headers of one entry, with its records, long names and the
	// map of a sparse file: what the reader of archives holds while it reads them.
	maxHeaderBytes = int64(256 << 10)
	// maxKeptBytes bounds the memory for what is kept of a layer while it is unpacked: its
	// directories and the names that it takes away, each charged keptNameBytes and the
	// bytes of its path.
	maxKeptBytes  = int64(64 << 20)
	keptNameBytes = int64(256)
	// maxNameTold bounds the part of a name that is kept to tell where an archive broke.
	maxNameTold = 200
	// maxWindowBytes bounds the memory that a layer packed by zstd asks of who unpacks it.
	maxWindowBytes = 64 << 20
	// maxUnpackedBytes bounds what one layer is when it is unpacked.
	maxUnpackedBytes = int64(64 << 30)
	// maxRatio is how many times its compressed size a layer may be, above
	// freeRatioBytes.
	maxRatio       = 200
	freeRatioBytes = int64(64 << 20)
	// growBytes is how much room a layer that is being unpacked gets at a time.
	growBytes = int64(4 << 20)
	// maxEntryPathBytes bounds the path of an entry, maxEntryNameBytes each part of it.
	maxEntryPathBytes = 4096
	maxEntryNameBytes = 255
	// maxLinkBytes bounds what a symbolic link points to.
	maxLinkBytes = 4095
	// parallelFetches is how many images are brought at once, those of production among them:
	// other work leaves it one of these.
	parallelFetches = 3
	// stallTimeout is how long a source may be silent.
	stallTimeout = 60 * time.Second
	// maxAnswerHeaderBytes bounds the head of what a registry answers.
	maxAnswerHeaderBytes = 256 << 10
	// maxServed is how many answers to other machines are under way at once.
	maxServed = 8
	// paceBytes is what an answer reads at once.
	paceBytes = 64 << 10
	// defaultPatience is how long a machine waits for one that has what it needs, while
	// nothing comes, before it asks where packages come from although it is not its
	// turn; twice that at most.
	defaultPatience = 2 * time.Minute
	// A machine is not asked again for so long: that serves as many as it may; that
	// has it not; that could not be asked; that sent what was not asked for.
	shunBusy   = 500 * time.Millisecond
	shunAbsent = time.Minute
	shunBroken = 15 * time.Second
	shunWrong  = 10 * time.Minute
	// maxShunned bounds what is remembered of that; beyond it all is forgotten.
	maxShunned = 4096
	// minLimitBytes is the least that a cache may be given.
	minLimitBytes = int64(16 << 20)
	// blockBytes is what a file takes on disk at least.
	blockBytes = 4096
)
