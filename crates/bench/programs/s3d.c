/* The checkpoint of S3D: four arrays of double-precision numbers in one file, 11, 3, 1 and 1 of them for each point of a grid. The grid is
 * divided into a block for each rank; the fourth dimension, which varies slowest, is not divided.
 *
 *   s3d FILE LAYOUT ATOMIC SEED EDGE BLOCKS_X BLOCKS_Y BLOCKS_Z [HINT=VALUE…]
 *   s3d --library
 *
 * LAYOUT is "shared" for one file in canonical order, "slabs" for one file of which each rank writes consecutive bytes, and "files" for a
 * file FILE.RANK of each rank with its blocks of all arrays. ATOMIC is 1 or 0. The grid has EDGE points in each direction, X varies fastest.
 * The file's words are those of its seed. Rank 0 prints the times of the slowest rank as JSON. */
#include "job.h"

enum { ARRAYS = 4 };
static const int COMPONENTS[ARRAYS] = {11, 3, 1, 1};

/* A part of a dimension: the first of its points and their number. */
struct part {
    int first, count;
};

static struct part part_of(int points, int parts, int index) {
    int first = (int)((long long)points * index / parts), end = (int)((long long)points * (index + 1) / parts);
    return (struct part){first, end - first};
}

/* The block of a rank: its parts of the dimensions z, y and x, with the number of points. */
struct block {
    struct part z, y, x;
    size_t points;
};

/* Fills memory with a block of an array whose first word has a number. */
static void fill(uint64_t *words, uint64_t seed, uint64_t base, int components, int edge, const struct block *block) {
    for (int component = 0; component < components; component++)
        for (int z = block->z.first; z < block->z.first + block->z.count; z++)
            for (int y = block->y.first; y < block->y.first + block->y.count; y++) {
                uint64_t row = base + (((uint64_t)component * edge + z) * edge + y) * edge;
                for (int x = block->x.first; x < block->x.first + block->x.count; x++) *words++ = word(seed, row + x);
            }
}

/* Writes elements at the individual pointer, and returns how many bytes were written. */
static long long write_all_of(MPI_File file, const void *elements, size_t count) {
    MPI_Status status;
    int written = 0;
    check(MPI_File_write(file, elements, (int)count, MPI_DOUBLE, &status), "MPI_File_write");
    MPI_Get_count(&status, MPI_DOUBLE, &written);
    if (written != (int)count) fail("MPI_File_write", "not all elements were written");
    return 8LL * written;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--library")) return print_library();
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 9) fail(argv[0], "too few arguments");
    const char *path = argv[1], *layout = argv[2];
    int atomic = atoi(argv[3]), edge = atoi(argv[5]);
    uint64_t seed = strtoull(argv[4], NULL, 10), grid = (uint64_t)edge * edge * edge;
    int across = atoi(argv[6]), down = atoi(argv[7]), deep = atoi(argv[8]);
    if (across * down * deep != size) fail(argv[0], "the number of blocks is not that of ranks");
    int is_shared = !strcmp(layout, "shared"), has_files = !strcmp(layout, "files");
    struct block block = {
        part_of(edge, deep, rank / (across * down)),
        part_of(edge, down, rank / across % down),
        part_of(edge, across, rank % across),
        0,
    };
    block.points = (size_t)block.z.count * block.y.count * block.x.count;

    /* What is to be written, before any clock runs. */
    uint64_t *mine[ARRAYS] = {0}, words = 0, slab_first = 0, slab_count = 0;
    MPI_Datatype types[ARRAYS];
    uint64_t bases[ARRAYS];
    for (int array = 0; array < ARRAYS; array++) {
        int components = COMPONENTS[array];
        bases[array] = words;
        words += components * grid;
        if (!is_shared && !has_files) continue;
        mine[array] = allocate(8 * components * block.points);
        fill(mine[array], seed, bases[array], components, edge, &block);
        int sizes[] = {components, edge, edge, edge};
        int subsizes[] = {components, block.z.count, block.y.count, block.x.count};
        int starts[] = {0, block.z.first, block.y.first, block.x.first};
        MPI_Type_create_subarray(4, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, &types[array]);
        MPI_Type_commit(&types[array]);
    }
    if (!is_shared && !has_files) {
        slab_first = words * rank / size;
        slab_count = words * (rank + 1) / size - slab_first;
        mine[0] = allocate(8 * slab_count);
        for (uint64_t index = 0; index < slab_count; index++) mine[0][index] = word(seed, slab_first + index);
    }

    MPI_Info info = hints(argc - 9, argv + 9);
    char *own = allocate(strlen(path) + 16);
    sprintf(own, has_files ? "%s.%d" : "%s", path, rank);
    meet(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    MPI_File file = open_file(has_files ? MPI_COMM_SELF : MPI_COMM_WORLD, own, info, atomic);
    double opening = MPI_Wtime() - begun;

    long long written = 0;
    meet(MPI_COMM_WORLD);
    begun = MPI_Wtime();
    if (is_shared || has_files) {
        for (int array = 0; array < ARRAYS; array++) {
            if (is_shared) {
                /* The call waits for all of them anyway. */
                if (array > 0) meet(MPI_COMM_WORLD);
                MPI_Offset base = 8 * bases[array];
                check(MPI_File_set_view(file, base, MPI_DOUBLE, types[array], "native", MPI_INFO_NULL), "MPI_File_set_view");
            }
            written += write_all_of(file, mine[array], COMPONENTS[array] * block.points);
        }
    } else {
        MPI_Offset base = 8 * slab_first;
        check(MPI_File_set_view(file, base, MPI_DOUBLE, MPI_DOUBLE, "native", MPI_INFO_NULL), "MPI_File_set_view");
        written += write_all_of(file, mine[0], slab_count);
    }
    double writing = MPI_Wtime() - begun;
    meet(MPI_COMM_WORLD);
    begun = MPI_Wtime();
    check(MPI_File_sync(file), "MPI_File_sync");
    double syncing = MPI_Wtime() - begun;
    meet(MPI_COMM_WORLD);
    check(MPI_File_close(&file), "MPI_File_close");

    long long all = 0;
    MPI_Reduce(&written, &all, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    opening = greatest(opening, MPI_COMM_WORLD);
    writing = greatest(writing, MPI_COMM_WORLD);
    syncing = greatest(syncing, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"ranks\": %d, \"bytes\": %lld, \"open_s\": %.9f, \"write_s\": %.9f, \"sync_s\": %.9f}\n", size, all, opening,
               writing, syncing);
    for (int array = 0; array < ARRAYS; array++) {
        if (is_shared || has_files) MPI_Type_free(&types[array]);
        free(mine[array]);
    }
    free(own);
    MPI_Info_free(&info);
    MPI_Finalize();
    return 0;
}
