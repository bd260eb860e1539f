/* Gives hints about the locks of a file, reads which ones hold, and writes by them.
 *
 *   hints FILE
 *
 * Prints "done" on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d, rank %d: not so: %s\n", __LINE__, rank, #condition);         \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

static int rank, size;
static MPI_File file;

/* Whether a hint holds; by NULL, whether there is none. */
static int holds(const char *name, const char *expected) {
    char value[65] = "";
    int is_there = 0;
    MPI_Info info;
    EXPECT(!MPI_File_get_info(file, &info));
    EXPECT(!MPI_Info_get(info, name, 64, value, &is_there));
    MPI_Info_free(&info);
    return expected ? is_there && !strcmp(value, expected) : !is_there;
}

/* Writes a vector of this rank's own, and reads it. */
static void access_file(int value) {
    enum { PIECES = 200 };
    int mine[PIECES], seen[PIECES];
    for (int piece = 0; piece < PIECES; piece++) mine[piece] = value + piece, seen[piece] = -1;
    EXPECT(!MPI_File_write_at(file, 0, mine, PIECES, MPI_INT, MPI_STATUS_IGNORE));
    EXPECT(!MPI_File_read_at(file, 0, seen, PIECES, MPI_INT, MPI_STATUS_IGNORE));
    EXPECT(!memcmp(mine, seen, sizeof mine));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "nacre_lock_method", "list");
    MPI_Info_set(info, "nacre_protocol", "two-phase");
    EXPECT(!MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    EXPECT(holds("nacre_lock_method", "list") && holds("nacre_protocol", "two-phase"));
    EXPECT(holds("nacre_stripe", NULL));
    EXPECT(!MPI_File_set_atomicity(file, 1));
    EXPECT(holds("nacre_stripe", "65536"));

    MPI_Datatype vector, view;
    MPI_Type_vector(200, 1, size, MPI_INT, &vector);
    MPI_Type_create_resized(vector, 0, (MPI_Aint)200 * size * sizeof(int), &view);
    MPI_Type_commit(&view);
    EXPECT(!MPI_File_set_view(file, rank * sizeof(int), MPI_INT, view, "native", MPI_INFO_NULL));
    access_file(1000 * rank);

    MPI_Info_set(info, "nacre_lock_method", "posix");
    MPI_Info_set(info, "nacre_protocol", "nonsense");
    MPI_Info_set(info, "nacre_stripe", "1KiB");
    EXPECT(MPI_File_set_info(file, info) != MPI_SUCCESS);
    EXPECT(holds("nacre_lock_method", "list") && holds("nacre_protocol", "two-phase"));
    MPI_Info_set(info, "nacre_protocol", "one-try");
    EXPECT(!MPI_File_set_info(file, info));
    EXPECT(holds("nacre_lock_method", "posix") && holds("nacre_protocol", "one-try"));
    EXPECT(holds("nacre_lock_block", "1") && holds("nacre_lock_flush", "false"));
    EXPECT(holds("nacre_stripe", "65536"));
    access_file(2000 * rank);

    MPI_Info_free(&info);
    MPI_Type_free(&vector);
    MPI_Type_free(&view);
    EXPECT(!MPI_File_close(&file));
    if (rank == 0) puts("done");
    MPI_Finalize();
    return 0;
}
